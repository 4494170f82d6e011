-- Which batch key a claim serves. A want is {batch key, slots, 1 if resident, 1 if idle, slots besides that only jobs of
-- p0 may take, room for the model where it is not loaded: 0 free, 1 unpaid, 2 crowded (see messages.Room), adapters that
-- are not meant}. A batch key that ends in '+' means every set of a model's adapters.

local why = 'empty'  -- why nothing is claimed, as far as is known
local function blocked(scope) why = 'limit ' .. scope; return true end

local MOST_HEADS = 1000  -- of a class, looked at for adapters; who stands further back comes as those before are served
local MOST_SETS = 16  -- of a model and class, that a claim chooses from
local MOST_LOOKS = 100  -- of a model and class, at who comes next to a set: each is a command
local MOST_OF_TENANT = 4  -- of them, to which the same tenant comes next: nobody hides the others behind many sets

local function is_meant(want, bk)
  for _, name in ipairs(want[7] or {}) do
    if string.find(bk, '+' .. name .. '=', 1, true) then return false end
  end
  return true
end

-- Whether a set of a model's family is one to choose from. `seen`: of the family and class, sets looked at, sets taken,
-- and by tenant those to which it comes next.
local function is_choice(seen, class, bk)
  if seen.looks >= MOST_LOOKS or seen.taken >= MOST_SETS then return false end
  seen.looks = seen.looks + 1
  local tenant = redis.call('ZRANGE', K.act .. class .. ':' .. bk, 0, 0)[1]
  if not tenant or (seen.by[tenant] or 0) >= MOST_OF_TENANT then return false end
  seen.taken, seen.by[tenant] = seen.taken + 1, (seen.by[tenant] or 0) + 1
  return true
end

-- The wants, each '+' replaced by the sets that wait, the earliest first: nobody knows their keys before. A set all of
-- whose tenants are at their limits takes no other's place.
local function with_sets(classes, wants)
  local families, all = {}, {}
  for _, want in ipairs(wants) do
    if string.sub(want[1], -1) ~= '+' then all[#all + 1] = want
    else families[want[1]] = {want = want, known = {}} end
  end
  if not next(families) then return all end
  for _, class in ipairs(classes) do
    local waiting = reader(K.bkhead .. class)
    for _, family in pairs(families) do family.seen = {looks = 0, taken = 0, by = {}} end
    for _ = 1, MOST_HEADS do
      local bk = peek(waiting)
      if not bk then break end
      waiting.at = waiting.at + 1
      local family = families[string.match(bk, '^[^+]*%+') or '']
      if family and not family.known[bk] and is_meant(family.want, bk) and is_choice(family.seen, class, bk) then
        family.known[bk] = true  -- once, whichever classes have jobs of it
        all[#all + 1] = {bk, unpack(family.want, 2, 6)}
      end
    end
  end
  return all
end

local heads = {}  -- batch key -> the classes that have jobs of it, each with its earliest virtual deadline
local function read_heads(classes, wants)
  local names = {}
  for i, want in ipairs(wants) do names[i], heads[want[1]] = want[1], {} end
  if #names == 0 then return end
  for _, class in ipairs(classes) do
    for i, vd in ipairs(redis.call('ZMSCORE', K.bkhead .. class, unpack(names))) do
      if vd then table.insert(heads[names[i]], {class = class, vd = tonumber(vd)}) end
    end
  end
end

-- The earliest virtual deadline of a batch key's claimable jobs; of p0 alone when it `is_urgent`.
local function head_of(bk, is_urgent)
  local vd
  for _, head in ipairs(heads[bk]) do
    local c = head.class
    if (c == 'p0' or not is_urgent) and (not vd or head.vd < vd) and redis.call('ZCARD', K.act .. c .. ':' .. bk) > 0 then
      if room('class:' .. c) <= 0 then blocked('class:' .. c)
      elseif unreserved_room(c) <= 0 then blocked('all')
      else vd = head.vd end
    end
  end
  return vd
end

local closed = {}  -- batch keys of which nothing could be taken
local function option_of(want)
  local bk, slots, urgent = want[1], want[2], want[5]
  if closed[bk] then return nil end
  local model, vd = string.match(bk, '^[^@]+'), head_of(bk)
  if not vd or (room('model:' .. model, 'model:*') <= 0 and blocked('model:' .. model)) then return nil end
  return {bk = bk, slots = slots, urgent = urgent, vd = vd, model = model, is_resident = want[3] == 1,
    is_idle = want[4] == 1, is_unpaid = want[6] == 1, is_crowded = want[6] == 2}
end

local function has_slots(option)
  return option.slots > 0 or (option.urgent > 0 and head_of(option.bk, true) ~= nil)
end

local function earlier(one, other) return not other or one.vd < other.vd end

-- Of the tenants that wait for a batch key the one who has been served least.
local function least_served(option)
  local least = math.huge
  for _, head in ipairs(heads[option.bk]) do
    local first = redis.call('ZRANGE', K.act .. head.class .. ':' .. option.bk, 0, 0, 'WITHSCORES')
    if first[1] then least = math.min(least, virtual_time(first[1])) end
  end
  return least
end

local BEHIND_MS = 10000  -- of GPU time for a unit of weight
local function is_behind(one, other) return least_served(one) + BEHIND_MS < least_served(other) end

-- Sets of one model compete for the same slots, so that a tenant with many does not go before others in all of them.
local function sooner(one, other)
  if other and one.model == other.model then
    if is_behind(one, other) then return true end
    if is_behind(other, one) then return false end
  end
  return earlier(one, other)
end

-- Stay with resident models until another key's head is overdue, and earlier than all of theirs or of a tenant that is
-- behind. One for which another model would have to go is chosen only then, and `is_crowded`: nothing can be claimed for
-- it yet.
local function choose(wants)
  local resident, best, other
  for _, want in ipairs(wants) do
    local option = option_of(want)
    if option and option.is_resident then
      if earlier(option, resident) then resident = option end
      if has_slots(option) and sooner(option, best) then best = option end
    elseif option and sooner(option, other) and (option.vd < now_ms or not option.is_crowded) then other = option end
  end
  local is_overdue = other and not other.is_unpaid and other.vd < now_ms
    and (earlier(other, resident) or is_behind(other, resident))
  if other and (is_overdue or not (best or other.is_crowded)) then return other end
  return best
end
