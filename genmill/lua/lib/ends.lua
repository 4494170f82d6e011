-- How jobs end: terminal state, registry, result, counters, webhook.

-- RQ reads a job's result from a stream. A new stream's node is allocated with 4 kB; its copy has just its size.
local function write_result(id, entry)
  local stream = K.results .. id
  redis.call('XADD', stream, 'MAXLEN', 10, '*', unpack(entry))
  redis.call('COPY', stream, K.scratch)
  redis.call('RENAME', K.scratch, stream)
end

-- RQ's counters of a worker, by its name.
local counters = {}
local function count_at_worker(h, is_success)
  if not h.start_ms or not h.worker_name then return end
  local c = counters[h.worker_name] or {successful_job_count = 0, failed_job_count = 0, seconds = 0}
  local name = is_success and 'successful_job_count' or 'failed_job_count'
  counters[h.worker_name], c[name] = c, c[name] + 1
  c.seconds = c.seconds + (now_ms - tonumber(h.start_ms)) / 1000
end

local function flush_counters()
  for name, c in pairs(counters) do
    local worker = K.worker .. name
    if redis.call('EXISTS', worker) == 1 then
      for _, field in ipairs({'successful_job_count', 'failed_job_count'}) do
        if c[field] > 0 then redis.call('HINCRBY', worker, field, c[field]) end
      end
      redis.call('HINCRBYFLOAT', worker, 'total_working_time', c.seconds)
    end
  end
  counters = {}
end

local CANCELED = '{"code": "canceled", "message": "The job was canceled."}'
-- Seconds that an ended job is kept; -1 is RQ's "for ever".
local function ttl_of(text) return tonumber(text or '') or 604800 end
local function expiry(ttl) return ttl < 0 and '+inf' or now_s + ttl end
local function keep(key, ttl)
  if ttl < 0 then redis.call('PERSIST', key) else redis.call('EXPIRE', key, ttl) end
end
local function keep_job(h, ttl)
  keep(K.job .. h.id, ttl)
  keep(K.results .. h.id, ttl)
  if h.dependency_id then keep(dependencies_of(h.id), ttl) end
end

-- What others see of a run that is over: RQ's result, registry and counters, and the webhook.
-- o: status (RQ's), event, ttl, type (RQ's result type), payload, error, exc (both may be '')
local function report(h, o)
  o.ttl = ttl_of(o.ttl)
  local entry = {'type', o.type, 'worker_name', h.worker_name or '', 'execution_id', 'f' .. int(h.fence),
    'execution_started_at', stamp(tonumber(h.start_ms) or now_ms), 'execution_ended_at', int(now_s)}
  if o.payload ~= '' then entry[#entry + 1] = 'return_value'; entry[#entry + 1] = o.payload end
  if o.exc ~= '' then entry[#entry + 1] = 'exc_string'; entry[#entry + 1] = o.exc end
  write_result(h.id, entry)
  local registry = ({finished = K.finished, failed = K.failed, canceled = K.canceled, stopped = K.failed})[o.status]
  later('ZADD', registry .. h.origin, expiry(o.ttl), h.id)
  count_at_worker(h, o.status == 'finished')
  use(h, o.event, 1)
  emit_callback(h, o.event)
end

local function finish(h, o)
  local key = K.job .. h.id
  redis.call('HSET', key, 'status', o.status, 'ended_at', iso(), 'ended_ms', int(now_ms), 'error', o.error,
    'settled', o.settled or '', 'gpu_ms', h.gpu_ms or 0)
  if h.cancel or h.progress then redis.call('HDEL', key, 'cancel', 'progress') end
  report(h, o)
  keep_job(h, o.ttl)
  note_end(h, o.status, o.ttl)
  note_line(h.id)
end

-- Send all that waits. Jobs that wait for ended ones, slots, then lanes, then the indexes over them.
local function flush()
  flush_ended()
  flush_lines()
  flush_holders()
  send_waiting()
  for tenant in pairs(freed) do unpark(tenant) end
  freed = {}
  flush_lanes()
  flush_counters()
  flush_uses()
end
