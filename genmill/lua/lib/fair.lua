-- Which job of a batch key is next: of the class with the most urgent job, that of the tenant with the least virtual
-- time that has room. Tenants come from the fair index, whose scores may lag behind; parked ones are not in it.

local indexes = {}  -- class -> what of its index was read, and the tenants that may be served

local function park(class, bk, tenant)
  local key = class .. ':' .. bk
  later('ZREM', K.act .. key, tenant)  -- at the end: readers of the index go by place
  redis.call('SADD', K.parked .. key, tenant)
  redis.call('SADD', K.parkings, tenant)
end

local function next_lane(class, bk, blocked)
  local key = class .. ':' .. bk
  local index = indexes[class] or {tenants = reader(K.act .. key), lanes = {}}
  indexes[class] = index
  while true do
    local best, best_at
    for at, lane in ipairs(index.lanes) do
      if not best or virtual_time(lane.tenant) < virtual_time(best.tenant) then best, best_at = lane, at end
    end
    local tenant, score = peek(index.tenants)
    if tenant and (not best or score < virtual_time(best.tenant)) then
      index.tenants.at = index.tenants.at + 1
      touch(class, bk, tenant)
      index.lanes[#index.lanes + 1] = {tenant = tenant, jobs = reader(K.lane .. key .. ':' .. tenant)}
    elseif not best then return nil
    elseif not peek(best.jobs) then table.remove(index.lanes, best_at)
    elseif tenant_room(best.tenant, class) <= 0 then
      blocked('tenant:' .. best.tenant)
      park(class, bk, best.tenant)
      table.remove(index.lanes, best_at)
    else return best end
  end
end

-- The class whose earliest job that is not taken yet has the earliest virtual deadline; classes without room, jobs or
-- tenants that may be served drop out.
local open, picked = {}, {}
local function open_classes(heads, bk)
  indexes, open, picked = {}, {}, {}
  for _, head in ipairs(heads) do
    open[#open + 1] = {class = head.class, jobs = reader(K.ready .. head.class .. ':' .. bk)}
  end
end

local function first_open()
  local best
  for at = #open, 1, -1 do
    local front = open[at]
    local id, vd = peek(front.jobs)
    while id and picked[id] do
      front.jobs.at = front.jobs.at + 1
      id, vd = peek(front.jobs)
    end
    if not id or room('class:' .. front.class) <= 0 or unreserved_room(front.class) <= 0 then table.remove(open, at)
    else
      front.vd = vd
      if not best or vd <= best.vd then best = front end
    end
  end
  return best
end

local function next_job(bk, blocked)
  while true do
    local front = first_open()
    if not front then return nil end
    local lane = next_lane(front.class, bk, blocked)
    if lane then return front.class, lane end
    for at, other in ipairs(open) do if other == front then table.remove(open, at) break end end
  end
end
