-- Turns a claimed plain call of worker.tasks.generate into a full job: running (as a call) -> queued in its lane.
-- ARGV: id, fence, delay ms of the class, list ttl s, then field, value pairs (tenant, model, batch_key, cost, rows, data ...)
-- Returns 'ok' or 'stale'.
local id, fence, delay_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local h = load(id)
if h.status ~= 'started' or h.fence ~= tonumber(fence) then return 'stale' end
release(id)
if h.cancel then
  finish(h, {status = 'canceled', event = 'canceled', type = 3, ttl = h.failure_ttl, payload = '', exc = '',
    error = CANCELED})
  flush()
  return 'ok'
end
redis.call('HSET', K.job .. id, unpack(ARGV, 5))
for _, name in ipairs({'result_ttl', 'failure_ttl'}) do  -- what its pusher asked for goes before the fleet's
  if h[name] then redis.call('HSET', K.job .. id, name, h[name]) end
end
redis.call('HSET', K.job .. id, 'status', 'queued', 'vd', int(now_ms + delay_ms), 'enqueued_ms', int(now_ms))
enqueue(load(id))
later('ZADD', K.list .. h.tenant, now_ms, id)
flush()
trim_list(h.tenant, tonumber(ARGV[4]))
return 'ok'
