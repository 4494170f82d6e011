-- Publishes limits with their epoch and expiry; an epoch is refused once a later one has published or its leader leads.
-- Changed limits take all tenants out of parking: the next claim parks again who is still at a cap.
-- ARGV: epoch, ttl ms, then scope, limit pairs
-- Returns 1 or 0.
local epoch, wanted = tonumber(ARGV[1]), {unpack(ARGV, 3)}
local published, leading = redis.call('HGET', K.lim, 'epoch'), redis.call('GET', K.epoch)
if math.max(tonumber(published or 0), tonumber(leading or 0)) > epoch then return 0 end
local mark = table.concat(wanted, '\n')
if redis.call('HGET', K.lim, 'mark') ~= mark then
  redis.call('DEL', K.limnow)
  if #wanted > 0 then redis.call('HSET', K.limnow, unpack(wanted)) end
  for _, tenant in ipairs(redis.call('SMEMBERS', K.parkings)) do unpark(tenant) end
  flush()
end
redis.call('HSET', K.lim, 'epoch', int(epoch), 'mark', mark, 'expires_ms', int(now_ms + tonumber(ARGV[2])))
return 1
