-- Shared by all scripts; put between the key table K and the script by genmill/store/scripts.py.
-- A job's place is one of: lane (queued), run:global (running), a registry (ended, scheduled).

local T = redis.call('TIME')
local now_s, now_ms = tonumber(T[1]), tonumber(T[1]) * 1000 + math.floor(tonumber(T[2]) / 1000)

local function int(n) return string.format('%.0f', n) end

-- RQ's time format, from civil-calendar arithmetic (Howard Hinnant, chrono-compatible date algorithms).
local function iso()
  local z = math.floor(now_s / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day, month = doy - math.floor((153 * mp + 2) / 5) + 1, mp < 10 and mp + 3 or mp - 9
  local year, s = yoe + era * 400 + (month <= 2 and 1 or 0), now_s % 86400
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, day,
    math.floor(s / 3600), math.floor(s % 3600 / 60), s % 60, tonumber(T[2]))
end

-- h.field for the fields that place, charge and release a job; h.exists is false for a hash that is gone.
local FIELDS = {'status', 'origin', 'tenant', 'model', 'batch_key', 'vd', 'cost', 'rows', 'fence', 'worker_name',
  'hook', 'crashes', 'result_ttl', 'failure_ttl', 'cancel', 'start_ms', 'expires_ms', 'lane'}
local function load(id)
  local values = redis.call('HMGET', K.job .. id, unpack(FIELDS))
  local h = {id = id}
  for i, name in ipairs(FIELDS) do h[name] = values[i] or nil end
  h.exists, h.fence = h.status ~= nil, tonumber(h.fence or 0)
  return h
end

-- The field `lane` is the class whose lane the job stands in; RQ rewrites `origin` when it enqueues a job again.
local function is_queued(h)
  return h.lane ~= nil and redis.call('ZSCORE', K.ready .. h.lane .. ':' .. h.batch_key, h.id) ~= false
end

local function refresh_head(class, bk)
  local head = redis.call('ZRANGE', K.ready .. class .. ':' .. bk, 0, 0, 'WITHSCORES')
  if head[1] then redis.call('ZADD', K.bkhead .. class, head[2], bk)
  else redis.call('ZREM', K.bkhead .. class, bk) end
end

local function virtual_time(tenant) return tonumber(redis.call('HGET', K.vt, tenant) or 0) end

-- A tenant that comes back from idle starts at the virtual clock, so that idling saves nothing up.
local function activate(class, bk, tenant)
  local key = class .. ':' .. bk
  if redis.call('SISMEMBER', K.parked .. key, tenant) == 1 then return end
  if redis.call('ZSCORE', K.act .. key, tenant) then return end
  local vt = math.max(virtual_time(tenant), tonumber(redis.call('GET', K.vclock) or 0))
  redis.call('HSET', K.vt, tenant, vt)
  redis.call('ZADD', K.act .. key, vt, tenant)
end

local function wake(class)
  redis.call('LPUSH', K.wake .. class, '1')
  redis.call('LTRIM', K.wake .. class, 0, 15)
  redis.call('EXPIRE', K.wake .. class, 60)
end

-- Into its lane: lane, ready index, fair index, head; wakes one worker.
local function enqueue(h)
  redis.call('HSET', K.job .. h.id, 'lane', h.origin)
  if h.expires_ms then redis.call('ZADD', K.ttl, h.expires_ms, h.id) end
  local key = h.origin .. ':' .. h.batch_key
  redis.call('ZADD', K.lane .. key .. ':' .. h.tenant, h.vd, h.id)
  redis.call('ZADD', K.ready .. key, h.vd, h.id)
  activate(h.origin, h.batch_key, h.tenant)
  refresh_head(h.origin, h.batch_key)
  redis.call('SADD', K.queues, K.queue .. h.origin)
  wake(h.origin)
end

local function dequeue(h)
  local key = h.lane .. ':' .. h.batch_key
  local lane = K.lane .. key .. ':' .. h.tenant
  redis.call('ZREM', lane, h.id)
  redis.call('ZREM', K.ready .. key, h.id)
  redis.call('ZREM', K.ttl, h.id)
  if redis.call('EXISTS', lane) == 0 then
    redis.call('ZREM', K.act .. key, h.tenant)
    redis.call('SREM', K.parked .. key, h.tenant)
  end
  refresh_head(h.lane, h.batch_key)
end

-- The scopes that count a job, most general first. Deliveries count only for their queue and their host.
local function scopes(h)
  local list = {'class:' .. h.origin, 'tenant:' .. h.tenant, 'tc:' .. h.tenant .. ':' .. h.origin}
  if h.origin ~= 'callbacks' then
    list[#list + 1] = 'model:' .. h.model
    list[#list + 1] = 'all'
  end
  return list
end

local function execution_of(h) return h.id .. ':f' .. int(h.fence) end

-- Back into every fair index that it was taken out of; costs one command for a tenant that is not parked.
local function unpark(tenant)
  if redis.call('SREM', K.parkings, tenant) == 0 then return end
  for _, class in ipairs({'p0', 'p1', 'p2', 'p3', 'callbacks'}) do
    for _, bk in ipairs(redis.call('ZRANGE', K.bkhead .. class, 0, -1)) do
      if redis.call('SREM', K.parked .. class .. ':' .. bk, tenant) == 1 then
        activate(class, bk, tenant)
        wake(class)
      end
    end
  end
end

-- Gives up lease and execution in every scope, and takes the job's tenant out of parking. What to give up stands in
-- the lease itself: it must work when RQ has deleted or rewritten the job. Returns the lease's fence, nil without one.
local function release(id)
  local key = K.lease .. id
  local l = redis.call('HMGET', key, 'origin', 'tenant', 'model', 'worker', 'fence')
  redis.call('ZREM', K.run .. 'global', id)
  if not l[1] then return nil end
  for _, scope in ipairs(scopes({origin = l[1], tenant = l[2], model = l[3]})) do
    redis.call('SREM', K.run .. scope, id)
  end
  local execution = id .. ':f' .. l[5]
  redis.call('ZREM', K.wip .. l[1], execution)
  redis.call('DEL', K.execution .. execution, K.executions .. id, key)
  redis.call('SREM', K.worker .. l[4] .. ':executions', execution)
  unpark(l[2])
  return tonumber(l[5])
end

-- The outbox: the delivery becomes a job of the queue `callbacks` in the same script as the commit it reports.
local function emit_callback(h, event)
  if not h.hook or h.hook == '' then return end
  local id = 'cb_' .. h.id .. '_' .. int(h.fence) .. '_' .. event
  local host = string.match(h.hook, '^%a+://([^/?#]+)') or 'unknown'
  local at = iso()
  redis.call('HSET', K.job .. id, 'status', 'queued', 'origin', 'callbacks', 'created_at', at, 'enqueued_at', at,
    'data', cjson.encode({'worker.tasks.deliver', cjson.null, {h.id, event}, {}}),
    'description', 'deliver ' .. event .. ' of ' .. h.id, 'timeout', 60, 'result_ttl', 86400, 'failure_ttl', 604800,
    'tenant', 'host:' .. host, 'model', 'callback', 'batch_key', 'callbacks', 'vd', int(now_ms), 'cost', 1,
    'rows', 1, 'fence', 0, 'parent', h.id, 'owner', h.tenant, 'url', h.hook, 'enqueued_ms', int(now_ms))
  enqueue(load(id))
end

-- A terminal state with its registry, result entry, time to live, worker counters and callback.
-- o: status (RQ's), event, ttl, type (RQ's result type), payload, error, exc (both may be '')
local function finish(h, o)
  local key, stream = K.job .. h.id, K.results .. h.id
  redis.call('HSET', key, 'status', o.status, 'ended_at', iso(), 'ended_ms', int(now_ms), 'error', o.error)
  redis.call('HDEL', key, 'cancel', 'progress', 'lane')
  local entry = {'type', o.type, 'worker_name', h.worker_name or '', 'execution_id', 'f' .. int(h.fence),
    'execution_started_at', tostring(tonumber(h.start_ms or now_ms) / 1000), 'execution_ended_at', int(now_s)}
  if o.payload ~= '' then entry[#entry + 1] = 'return_value'; entry[#entry + 1] = o.payload end
  if o.exc ~= '' then entry[#entry + 1] = 'exc_string'; entry[#entry + 1] = o.exc end
  redis.call('XADD', stream, 'MAXLEN', 10, '*', unpack(entry))
  local registry = ({finished = K.finished, failed = K.failed, canceled = K.canceled, stopped = K.failed})[o.status]
  local ttl = tonumber(o.ttl or 604800)
  redis.call('ZADD', registry .. h.origin, ttl < 0 and '+inf' or now_s + ttl, h.id)
  for _, each in ipairs({key, stream}) do
    if ttl < 0 then redis.call('PERSIST', each) else redis.call('EXPIRE', each, ttl) end  -- -1: RQ's "for ever"
  end
  local worker = K.worker .. (h.worker_name or '')
  if redis.call('EXISTS', worker) == 1 and h.start_ms then
    redis.call('HINCRBY', worker, o.status == 'finished' and 'successful_job_count' or 'failed_job_count', 1)
    redis.call('HINCRBYFLOAT', worker, 'total_working_time', (now_ms - tonumber(h.start_ms)) / 1000)
  end
  emit_callback(h, o.event)
end

-- RQ itself ended a running job (its cancel or delete): free its slots; a canceled one still tells its webhook.
local function end_foreign(h)
  local had_lease = release(h.id) ~= nil
  if had_lease and h.status == 'canceled' then emit_callback(h, 'canceled') end
end
