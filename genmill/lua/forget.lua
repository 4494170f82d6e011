-- Drops virtual times that tell nothing: of tenants without a waiting job, and no further than the virtual clock, at
-- which they would begin anew. ARGV: cursor, about how many to look at. Returns the cursor to go on from, '0' at the end.
local clock = tonumber(redis.call('GET', K.vclock) or 0)
local cursor, found = unpack(redis.call('HSCAN', K.vt, ARGV[1], 'COUNT', ARGV[2]))
for i = 1, #found, 2 do
  if tonumber(found[i + 1]) <= clock and redis.call('HEXISTS', K.waiting, found[i]) == 0 then
    redis.call('HDEL', K.vt, found[i])
  end
end
return cursor
