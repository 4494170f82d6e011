-- RQ's Retry and Repeat: a run is over, the job is not. It waits in RQ's scheduled registry, or on its plain list at
-- once; how long, RQ's own rules say.

local function seconds_of(id, field)
  local is_json, list = pcall(cjson.decode, redis.call('HGET', K.job .. id, field) or '')
  return is_json and type(list) == 'table' and list or {}
end

-- `fields` are name, value pairs, `old` the names of fields that go.
local function run_again(h, o, delay_s, is_front, fields, old)
  local key, is_now = K.job .. h.id, not (delay_s and delay_s > 0)
  redis.call('HSET', key, 'status', is_now and 'queued' or 'scheduled', 'ended_at', iso(), 'error', o.error, 'settled',
    o.settled, 'gpu_ms', h.gpu_ms, unpack(fields))
  redis.call('HDEL', key, 'progress', unpack(old))
  if is_now then
    redis.call('HSET', key, 'enqueued_at', iso())
    push(h.id, h.origin, is_front)
  else
    later('ZADD', K.scheduled .. h.origin, math.floor(now_ms / 1000 + delay_s), h.id)
  end
end

-- As in RQ, a run that is tried again leaves no result. The job goes to the end of the line, or keeps its place in it.
local function retry(h, o, left)
  local list = seconds_of(h.id, 'retry_intervals')
  local delay_s = tonumber(list[math.max(#list - left, 0) + 1])
  local is_front = redis.call('HGET', K.job .. h.id, 'enqueue_at_front_on_retry') == '1'
  count_at_worker(h, false)
  run_again(h, o, delay_s, is_front, {'retries_left', int(left - 1)}, is_front and {} or {'vd'})
end

-- As in RQ, each run of a repeated job is a success of its own. The next one starts anew, at the end of the line.
local function repeat_later(h, o, left)
  local list, fields = seconds_of(h.id, 'repeat_intervals'), {'repeats_left', int(left - 1)}
  local delay_s = tonumber(list[1])
  if #list > 1 then
    table.remove(list, 1)
    fields[3], fields[4] = 'repeat_intervals', cjson.encode(list)
  end
  report(h, o)
  keep(K.results .. h.id, o.ttl)
  note_end(h, o.status, -1)
  run_again(h, o, delay_s, false, fields, {'lane', 'enqueue_at_front'})
end

-- A job that a client wants canceled goes on no more; nor does one that `is_hopeless`: another run would fail as well.
local function end_run(h, o, is_hopeless)
  local left, go_on
  if o.status == 'finished' then left, go_on = h.repeats_left, repeat_later
  elseif o.status == 'failed' and not is_hopeless then left, go_on = h.retries_left, retry end
  left = left and not h.cancel and tonumber(left)
  if left and left > 0 then go_on(h, o, left) else finish(h, o) end
end
