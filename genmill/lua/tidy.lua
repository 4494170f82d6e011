-- Looks whether the indexes over jobs are true: slots that no lease holds, lanes that no claim would find.
-- ARGV: '1' to mend, number of scopes, scopes, then class, batch key, tenant triples of lanes
-- Returns name, fault pairs.
local is_mending, count, faults = ARGV[1] == '1', tonumber(ARGV[2]), {}
local function note(name, fault) faults[#faults + 1] = name; faults[#faults + 1] = fault end

for i = 3, 2 + count do
  local key = K.run .. ARGV[i]
  local ids = ARGV[i] == 'global' and redis.call('ZRANGE', key, 0, -1) or redis.call('SMEMBERS', key)
  for _, id in ipairs(ids) do
    if redis.call('HEXISTS', K.leases, id) == 0 then
      note(ARGV[i], 'slot of ' .. id .. ', which holds no lease')
      if is_mending then later(ARGV[i] == 'global' and 'ZREM' or 'SREM', key, id) end
    end
  end
end

for i = 3 + count, #ARGV, 3 do
  local class, bk, tenant = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local key = class .. ':' .. bk
  local is_known = redis.call('ZSCORE', K.act .. key, tenant) or redis.call('SISMEMBER', K.parked .. key, tenant) == 1
  local is_there = redis.call('EXISTS', K.lane .. key .. ':' .. tenant) == 1  -- it may have drained since it was seen
  if is_there and (not is_known or not redis.call('ZSCORE', K.bkhead .. class, bk)) then
    note(key .. ':' .. tenant, 'lane that no claim would find')
    if is_mending then touch(class, bk, tenant); woken[class] = true end
  end
end
flush()
return faults
