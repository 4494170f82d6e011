-- Cancels a batch: nothing more of it is fed, the scheduler cancels what waits, what runs may end.
-- ARGV: id. Returns 'cancelling', 'too_late' (it has ended; so says a repeat, too, once the batch is drained) or 'unknown'.
local key = K.batch .. ARGV[1]
local state = redis.call('HGET', key, 'state')
if not state then return 'unknown' end
if state ~= 'in_progress' and state ~= 'expiring' and state ~= 'cancelling' then return 'too_late' end
redis.call('HSET', key, 'state', 'cancelling')
if state ~= 'cancelling' then redis.call('HSET', key, 'cancelling_ms', int(now_ms)) end
return 'cancelling'
