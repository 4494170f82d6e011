-- One leader at a time, each with an epoch higher than all before.
-- ARGV: name, ttl ms (0 resigns)
-- Returns the epoch of the caller, or 0 when another leads (or the caller resigned).
local name, ttl = ARGV[1], tonumber(ARGV[2])
local leader = redis.call('GET', K.leader)
if leader and leader ~= name then return 0 end
if ttl == 0 then redis.call('DEL', K.leader); return 0 end
if not leader then redis.call('INCR', K.epoch) end
redis.call('SET', K.leader, name, 'PX', ttl)
return tonumber(redis.call('GET', K.epoch))
