-- Moves a batch on: to 'expiring' once its time is over, and, by a later call, to its end once nothing of it is open. In
-- between the scheduler takes up lines whose jobs are stored beyond the cursor. Its end is told to its webhook.
-- ARGV: id, state as the caller knows it, seconds that an ended batch is kept
-- Returns its state, or '' when it is gone. One whose state is another by now is left as it is.
local id, believed, kept_s, key = ARGV[1], ARGV[2], tonumber(ARGV[3]), K.batch .. ARGV[1]
local state, fed, total, expires_ms, tenant, body, hook =
  unpack(redis.call('HMGET', key, 'state', 'fed', 'total', 'expires_ms', 'tenant', 'body', 'hook'))
if not state then redis.call('ZREM', K.batches, id); return '' end
if state ~= believed then return state end
local is_open = redis.call('EXISTS', K.batchopen .. id) == 1
if state == 'in_progress' and (fed ~= total or is_open) and tonumber(expires_ms) <= now_ms then
  redis.call('HSET', key, 'state', 'expiring')
  return 'expiring'
end
local after = ({cancelling = 'cancelled', expiring = 'expired'})[state]
if state == 'in_progress' and fed == total then after = 'completed' end
if not after or is_open then return state end
redis.call('HSET', key, 'state', after, 'ended_ms', int(now_ms))
redis.call('ZREM', K.batches, id)
redis.call('DEL', K.batchended .. id, K.batchfaults .. id)
redis.call('EXPIRE', key, kept_s)
redis.call('EXPIRE', K.batchparts .. id, kept_s)
if redis.call('GET', K.batchbody .. tenant .. ':' .. body) == id then
  redis.call('EXPIRE', K.batchbody .. tenant .. ':' .. body, kept_s)
end
redis.call('ZADD', K.shelf, now_ms + 1000 * kept_s, id)
emit_callback({id = id, fence = 0, tenant = tenant, hook = hook}, after, key)
send_waiting()
flush_lanes()
return after
