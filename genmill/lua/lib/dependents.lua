-- RQ's depends_on: jobs that wait for others, in the deferred registry. They become queued in the script that ends the
-- last of those, whichever way it ends. RQ's rules hold: a finished dependency is met, and one that is gone; a failed
-- one for a job that allows failures; a canceled or stopped one never.

local function dependents_of(id) return K.job .. id .. K.dependents end
local function dependencies_of(id) return K.job .. ':' .. id .. K.dependencies end

-- Onto RQ's plain list; the next claim puts it into its lane.
local function push(id, class, is_front)
  later(is_front and 'LPUSH' or 'RPUSH', K.queue .. class, id)
  woken[class], stocked[class] = true, true
end

local function is_met(status, takes_failed) return status == 'finished' or (status == 'failed' and takes_failed) end

-- `parent` has ended with `ended_as`, whatever its hash says by now: a repeated job is queued again.
local function waits_for_nothing(id, takes_failed, parent, ended_as)
  if not is_met(ended_as, takes_failed) then return false end
  for _, other in ipairs(redis.call('SMEMBERS', dependencies_of(id))) do
    local status = other ~= parent and redis.call('HGET', K.job .. other, 'status')
    if status and not is_met(status, takes_failed) then return false end
  end
  return true
end

local DEPENDENT = {'status', 'fence', 'origin', 'allow_dependency_failures', 'enqueue_at_front'}
local function release_dependent(id, parent, ended_as)
  local d = load(id, DEPENDENT)
  if d.status == 'deferred' and d.origin
      and waits_for_nothing(id, d.allow_dependency_failures == '1', parent, ended_as) then
    redis.call('HSET', K.job .. id, 'status', 'queued', 'enqueued_at', iso())
    redis.call('ZREM', K.deferred .. d.origin, id)
    redis.call('SREM', dependents_of(parent), id)
    push(id, d.origin, d.enqueue_at_front == '1')
  end
end

-- Chained jobs (lib/chains.lua) among these, by their places.
local function chained_as(tenant, id) return (tenant or 'default') .. '/' .. id end
local function which_are_chained(ids, tenant)
  local names, found = {}, {}
  for i, id in ipairs(ids) do names[i] = chained_as(tenant, id) end
  for first = 1, #names, PARTS do
    local last = math.min(first + PARTS - 1, #names)
    for i, score in ipairs(redis.call('ZMSCORE', K.chained, unpack(names, first, last))) do
      found[first + i - 1] = score
    end
  end
  return found
end

local move_on  -- lib/chain_ends.lua, for what needs the ends of jobs
local moves_left = 200  -- in one run of a script, which others wait for; the scheduler moves the rest on

-- The end of a job reads and marks all that wait for it, and one run of a script does so for so many; only the first may
-- have more, up to MOST_DEPENDENTS, so that it ends at all.
local MOST_DEPENDENTS, MOST_MARKS = 10000, 2000
local marks_left, charged = MOST_MARKS, {}
local function charge(id, count) marks_left, charged[id] = marks_left - count, true end
local function has_room_for(id)
  local count = redis.call('SCARD', dependents_of(id))
  if count > marks_left and marks_left < MOST_MARKS then return false end
  charge(id, count)
  return true
end
-- A job that goes into its line ends nothing.
local function may_move_on(id, ended_as) return ended_as == 'finished' or has_room_for(id) end

-- The scheduler moves these on. They wait for a finished one no more, whenever its hash expires.
local function leave_due(ids, parent, ended_as)
  local parts = {}
  for _, id in ipairs(ids) do
    parts[#parts + 1], parts[#parts + 2] = 0, chained_as(parent.tenant, id)
    if ended_as == 'finished' then redis.call('SREM', dependencies_of(id), parent.id) end
  end
  send('ZADD', K.chained, parts)
  if ended_as == 'finished' then send('SREM', dependents_of(parent.id), ids) end
end

local function release_dependents(parent, ended_as, kept_s)
  local ids, due = redis.call('SMEMBERS', dependents_of(parent.id)), {}
  if not charged[parent.id] then charge(parent.id, #ids) end
  local is_chained = which_are_chained(ids, parent.tenant)
  for i, id in ipairs(ids) do
    if not is_chained[i] then release_dependent(id, parent.id, ended_as)
    else
      moves_left = moves_left - 1
      if moves_left >= 0 and may_move_on(id, ended_as) then move_on(id, parent.tenant, parent.id, ended_as)
      else due[#due + 1] = id end
    end
  end
  if due[1] then leave_due(due, parent, ended_as) end
  if kept_s >= 0 then redis.call('EXPIRE', dependents_of(parent.id), kept_s) end
end

-- Whether any job that ended has dependents is asked once for all of them, by flush. `kept_s` as RQ's ttls: -1 for ever.
local ended, sets = {}, {}
local function note_end(h, status, kept_s)
  local at = #sets + 1
  ended[at], sets[at] = {h, status, kept_s}, dependents_of(h.id)
end

-- Those that end with one have dependents of their own.
local function flush_ended()
  while sets[1] do
    local some, some_sets = ended, sets
    ended, sets = {}, {}
    if redis.call('EXISTS', unpack(some_sets)) > 0 then
      for _, one in ipairs(some) do release_dependents(unpack(one)) end
    end
  end
end
