-- Publishes limits with their epoch and expiry; an older epoch is refused.
-- ARGV: epoch, limits (JSON object scope -> most live leases), ttl ms
-- Returns 1 or 0.
local epoch = tonumber(ARGV[1])
if tonumber(redis.call('HGET', K.lim, 'epoch') or 0) > epoch then return 0 end
redis.call('HSET', K.lim, 'epoch', int(epoch), 'limits', ARGV[2], 'expires_ms', int(now_ms + tonumber(ARGV[3])))
return 1
