-- Drops virtual times that tell nothing: of tenants without a job that waits or runs (the end of one is charged by what
-- it took), and no further than the virtual clock, at which they would begin anew. ARGV: cursor, about how many to look
-- at. Returns the cursor to go on from, '0' at the end.
local clock = tonumber(redis.call('GET', K.vclock) or 0)
local cursor, found = unpack(redis.call('HSCAN', K.vt, ARGV[1], 'COUNT', ARGV[2]))
for i = 1, #found, 2 do
  local tenant = found[i]
  if tonumber(found[i + 1]) <= clock and redis.call('HEXISTS', K.waiting, tenant) == 0
    and redis.call('EXISTS', K.run .. 'tenant:' .. tenant) == 0 then
    redis.call('HDEL', K.vt, tenant)
  end
end
return cursor
