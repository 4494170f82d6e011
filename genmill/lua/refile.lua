-- Turns a claimed plain call of worker.tasks.generate into a full job: running (as a call) -> queued in its lane.
-- ARGV: id, fence, then field, value pairs (tenant, model, batch_key, cost, rows, data, delay_ms ...)
-- Returns 'ok' or 'stale'.
local id, fence = ARGV[1], ARGV[2]
local h = load(id)
if h.status ~= 'started' or h.fence ~= tonumber(fence) then return 'stale' end
release(id)
redis.call('HSET', K.job .. id, unpack(ARGV, 3))
local delay = tonumber(redis.call('HGET', K.job .. id, 'delay_ms') or 0)
redis.call('HSET', K.job .. id, 'status', 'queued', 'vd', int(now_ms + delay), 'enqueued_ms', int(now_ms))
enqueue(load(id))
return 'ok'
