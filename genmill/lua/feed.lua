-- Moves a batch's cursor over lines whose jobs are stored by now, or that have a fault and get none.
-- ARGV: id, cursor as the caller knows it, new cursor, then line, error (JSON) pairs of the faults. Lines count from 1; the
--       cursor is the number of those before it.
-- Returns 1, also when the cursor stands there already, such as after a call whose reply got lost; or 0 when another has
-- moved it elsewhere, or the batch has ended or is gone: nothing changed.
local id, from, to = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local FED = {in_progress = true, cancelling = true, expiring = true}  -- what drains takes up lines that are stored
local state, fed = unpack(redis.call('HMGET', K.batch .. id, 'state', 'fed'))
if not FED[state] then return 0 end
if tonumber(fed) ~= from then return tonumber(fed) == to and 1 or 0 end
local left_s, lines, ended, faults = redis.call('TTL', K.batch .. id), {}, {}, {}
for line = from + 1, to do lines[#lines + 1] = int(line) end
for i = 4, #ARGV, 2 do
  ended[#ended + 1] = ARGV[i]
  faults[#faults + 1], faults[#faults + 2] = ARGV[i], ARGV[i + 1]
end
redis.call('HSET', K.batch .. id, 'fed', int(to))
for key, change in pairs({[K.batchopen] = {'SADD', lines}, [K.batchended] = {'SADD', ended},
    [K.batchfaults] = {'HSET', faults}}) do
  if change[2][1] then
    send(change[1], key .. id, change[2])
    redis.call('EXPIRE', key .. id, left_s)
  end
end
return 1
