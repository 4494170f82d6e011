-- Publishes limits with their epoch and expiry; an older epoch is refused. Changed limits take all tenants out of
-- parking: the next claim parks again who is still at a cap.
-- ARGV: epoch, limits (JSON object scope -> most live leases), ttl ms
-- Returns 1 or 0.
local epoch = tonumber(ARGV[1])
if tonumber(redis.call('HGET', K.lim, 'epoch') or 0) > epoch then return 0 end
if redis.call('HGET', K.lim, 'limits') ~= ARGV[2] then
  for _, tenant in ipairs(redis.call('SMEMBERS', K.parkings)) do unpark(tenant) end
end
redis.call('HSET', K.lim, 'epoch', int(epoch), 'limits', ARGV[2], 'expires_ms', int(now_ms + tonumber(ARGV[3])))
return 1
