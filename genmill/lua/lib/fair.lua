-- Whose job of a class and batch key is next: the tenant with the least virtual time that has room. Tenants come from
-- the fair index, whose scores may be too low, never too high by more than what runs; parked ones are not in it.

local indexes = {}  -- class -> what of its index was read, and the tenants that may be served

local function park(class, bk, tenant)
  local key = class .. ':' .. bk
  redis.call('ZREM', K.act .. key, tenant)
  redis.call('SADD', K.parked .. key, tenant)
  redis.call('SADD', K.parkings, tenant)
end

local function next_lane(class, bk, most, blocked)
  local key = class .. ':' .. bk
  local index = indexes[class] or {tenants = reader(K.act .. key, 16), lanes = {}}
  indexes[class] = index
  while true do
    local best, best_at
    for at, lane in ipairs(index.lanes) do
      if not best or virtual_time(lane.tenant) < virtual_time(best.tenant) then best, best_at = lane, at end
    end
    local tenant, score = peek(index.tenants)
    if tenant and (not best or score <= virtual_time(best.tenant)) then
      index.tenants.at = index.tenants.at + 1
      touch(class, bk, tenant)
      index.lanes[#index.lanes + 1] = {tenant = tenant, jobs = reader(K.lane .. key .. ':' .. tenant, most)}
    elseif not best then return nil
    elseif not peek(best.jobs) then table.remove(index.lanes, best_at)
    elseif tenant_room(best.tenant, class) <= 0 then
      blocked('tenant:' .. best.tenant)
      park(class, bk, best.tenant)
      table.remove(index.lanes, best_at)
    else return best end
  end
end
