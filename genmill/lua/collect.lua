-- Enters lines whose results stand in a part of the batch's results: they are open no more, and their jobs may go.
-- ARGV: id, number of collected lines as the caller knows it, lines in a full part, name of the part, job's ttl s,
--       succeeded, failed, canceled (counts of these lines), then the lines
-- Returns 1, also when this very part was entered before, by a call whose reply got lost; or 0 when another has collected
-- since: nothing changed, and the part is not to be read.
local id, done, part_lines, part, job_ttl_s = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local key, lines = K.batch .. id, {unpack(ARGV, 9)}
local h = redis.call('HMGET', key, 'done', 'tenant', 'mark_ms', 'mark_done')
local parts, index = K.batchparts .. id, math.floor(done / part_lines)
if tonumber(h[1] or -1) ~= done then return redis.call('LINDEX', parts, index) == part and 1 or 0 end

local ENDED = {finished = K.finished, failed = K.failed, canceled = K.canceled, stopped = K.failed}
-- One that an operator has queued again stays, and one whose webhook may still ask for it. Of the others only so much is
-- left, and for a while, that its id is stored no second time and its commit known when it is repeated.
local function let_go(job)
  local status, fence, settled, origin, hook =
    unpack(redis.call('HMGET', K.job .. job, 'status', 'fence', 'settled', 'origin', 'hook'))
  later('ZREM', K.list .. h[2], job)
  if not status or not ENDED[status] or hook then return end
  redis.call('DEL', K.job .. job, K.results .. job)
  redis.call('HSET', K.job .. job, 'status', status, 'fence', fence or 0, 'settled', settled or '', 'collected', 1)
  redis.call('EXPIRE', K.job .. job, job_ttl_s)
  later('ZREM', ENDED[status] .. origin, job)
end

for _, line in ipairs(lines) do let_go(id .. '-' .. line) end
send_waiting()
send('SREM', K.batchopen .. id, lines)
send('SREM', K.batchended .. id, lines)
send('HDEL', K.batchfaults .. id, lines)
if redis.call('LLEN', parts) > index then redis.call('LSET', parts, index, part)
else redis.call('RPUSH', parts, part) end
redis.call('EXPIRE', parts, redis.call('TTL', key))
for i, name in ipairs({'succeeded', 'failed', 'canceled'}) do redis.call('HINCRBY', key, name, ARGV[5 + i]) end
redis.call('HSET', key, 'done', int(done + #lines))
if now_ms - tonumber(h[3]) >= 30000 then  -- the rate is that since the mark before
  redis.call('HSET', key, 'pace_ms', h[3], 'pace_done', h[4], 'mark_ms', int(now_ms), 'mark_done', int(done + #lines))
end
return 1
