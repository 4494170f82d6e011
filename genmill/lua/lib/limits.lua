-- Limits on live leases, by scope: what the scheduler published, else what an operator has set, else static ones.

local static, sources, known_limits, rooms = {}, {}, {}, {}

local function read_limits(json)
  static, sources = cjson.decode(json), {K.limset}
  local expires = tonumber(redis.call('HGET', K.lim, 'expires_ms') or 0)
  if expires > now_ms then table.insert(sources, 1, K.limnow) end
end

local function look_up(scope, default)
  for _, source in ipairs(sources) do
    local known = redis.call('HMGET', source, scope, default or scope)
    if known[1] or known[2] then return tonumber(known[1] or known[2]) end
  end
  return static[scope] or (default and static[default]) or false
end

-- The limit of a scope, or of its default; nil where there is none.
local function limit_of(scope, default)
  if known_limits[scope] == nil then known_limits[scope] = look_up(scope, default) end
  return known_limits[scope] or nil
end

-- Slots that are free in a scope; counted down as jobs are taken.
local function room(scope, default, limit_name)
  if not rooms[scope] then
    local most = limit_of(limit_name or scope, default)
    rooms[scope] = most and most - redis.call('SCARD', K.run .. scope) or math.huge
  end
  return rooms[scope]
end

local taken_in = {}  -- scope -> leases of this run, which Redis does not count yet
local function take_room(scope_list)
  for _, scope in ipairs(scope_list) do
    if rooms[scope] then rooms[scope] = rooms[scope] - 1 end
    taken_in[scope] = (taken_in[scope] or 0) + 1
  end
end

local function tenant_room(tenant, class)
  if class == 'callbacks' then return room('tenant:' .. tenant, 'host:*', tenant) end  -- a tenant for each host
  return math.min(room('tenant:' .. tenant, 'tenant:*'), room('tc:' .. tenant .. ':' .. class, 'tc:*:' .. class))
end

-- What the fleet's limit leaves to a class, once the slots are set aside that other classes have reserved.
local function unreserved_room(class)
  local left = room('all')
  if class == 'callbacks' or left == math.huge then return math.huge end
  for _, other in ipairs({'p0', 'p1', 'p2', 'p3'}) do
    local kept, scope = other ~= class and limit_of('reserve:' .. other), 'class:' .. other
    if kept then left = left - math.max(0, kept - redis.call('SCARD', K.run .. scope) - (taken_in[scope] or 0)) end
  end
  return left
end
