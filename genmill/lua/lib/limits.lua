-- Limits on live leases, by scope: what the scheduler published, else what an operator has set, else static ones.

local static, sources, known_limits, rooms = {}, {}, {}, {}

local MOST_READ = 64  -- a source with more limits is asked for each scope that comes up

-- A small source is read whole: a claim asks for a dozen scopes, and most fleets have no more limits than that.
local function add_source(key)
  local size = redis.call('HLEN', key)
  if size == 0 then return end
  local source = {key = key}
  if size <= MOST_READ then
    source.known = {}
    local flat = redis.call('HGETALL', key)
    for i = 1, #flat, 2 do source.known[flat[i]] = flat[i + 1] end
  end
  sources[#sources + 1] = source
end

local function read_limits(json)
  static = cjson.decode(json)
  local expires = tonumber(redis.call('HGET', K.lim, 'expires_ms') or 0)
  if expires > now_ms then add_source(K.limnow) end
  add_source(K.limset)
end

local function look_up(scope, default)
  for _, source in ipairs(sources) do
    local exact, general
    if source.known then exact, general = source.known[scope], source.known[default or scope]
    else exact, general = unpack(redis.call('HMGET', source.key, scope, default or scope)) end
    if exact or general then return tonumber(exact or general) end
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
