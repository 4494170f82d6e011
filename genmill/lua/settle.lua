-- Ends or gives back one running job, if the fence is still its own.
-- ARGV: id, fence, outcome, payload (b64 JSON or ''), error (JSON or ''), exc (b64 zlib or ''), gpu ms, delay ms
--   outcome: finished | failed | canceled | stopped   running -> that terminal state
--            scheduled                                running -> scheduled for now + delay ms (RQ's registry)
--            returned                                 running -> queued at its old virtual deadline, nothing charged
-- Returns 'ok', 'again' (this very commit was made before) or 'stale' (the lease was lost; nothing changed).
local id, fence, outcome, payload, err, exc, gpu_ms, delay_ms = unpack(ARGV)
local h = load(id)
if not h.exists or h.fence ~= tonumber(fence) then return 'stale' end
if h.status ~= 'started' then
  if redis.call('HGET', K.job .. id, 'settled') == fence .. ':' .. outcome then return 'again' end
  if h.status ~= 'queued' then end_foreign(h) end
  return 'stale'
end

release(id)
local charged = outcome == 'returned' and 0 or tonumber(gpu_ms)
local vt = virtual_time(h.tenant)
redis.call('HSET', K.vt, h.tenant, math.max(0, vt + charged - tonumber(h.cost or 1)))
redis.call('HSET', K.job .. id, 'settled', fence .. ':' .. outcome)
wake(h.origin)

if h.cancel and (outcome == 'returned' or outcome == 'scheduled') then
  finish(h, {status = 'canceled', event = 'canceled', type = 3, ttl = h.failure_ttl, payload = '', exc = '',
    error = '{"code": "canceled", "message": "The job was canceled."}'})
elseif outcome == 'returned' then
  redis.call('HSET', K.job .. id, 'status', 'queued')
  redis.call('HDEL', K.job .. id, 'progress')
  enqueue(h)
elseif outcome == 'scheduled' then
  redis.call('HSET', K.job .. id, 'status', 'scheduled', 'error', err)
  redis.call('ZADD', K.scheduled .. h.origin, math.floor((now_ms + tonumber(delay_ms)) / 1000), id)
else
  redis.call('HINCRBYFLOAT', K.job .. id, 'gpu_ms', gpu_ms)
  finish(h, {status = outcome, payload = payload, error = err, exc = exc,
    event = ({finished = 'succeeded', failed = 'failed', canceled = 'canceled', stopped = 'canceled'})[outcome],
    type = ({finished = 1, failed = 2, canceled = 3, stopped = 3})[outcome],
    ttl = outcome == 'finished' and h.result_ttl or h.failure_ttl})
end
return 'ok'
