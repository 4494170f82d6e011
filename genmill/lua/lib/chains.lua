-- Chains: jobs that were submitted with dependencies. Beside RQ's sets and its deferred registry they stand in
-- K.chained, as <tenant>/<id>, by when the scheduler looks at them again; so long they count among those that wait.
-- Unlike a job that RQ alone made depend on others, a chained one ends with the first of them that does not succeed.

local AGAIN_MS = 60000  -- within this what no script followed up is seen: a dependency that was deleted

-- Of the jobs that one of this tenant depends on, those that have not ended, nil where all have; or nil, and the answer
-- to a job that cannot wait for them.
local PARENT = {'status', 'fence', 'tenant'}
local function still_to_end(tenant, ids)
  local pending = {}
  for _, id in ipairs(ids) do
    local d = load(id, PARENT)
    if not d.exists or (d.tenant or 'default') ~= tenant then return nil, {'dependency', id, 'unknown', ''} end
    if WORDS[d.status] then return nil, {'dependency', id, 'ended', reason_of(id, d.status)} end
    if d.status ~= 'finished' then
      local others = redis.call('SCARD', dependents_of(id))
      if others >= MOST_DEPENDENTS then return nil, {'dependency', id, 'full', tostring(others)} end
      pending[#pending + 1] = id
    end
  end
  return pending[1] and pending
end

-- Where a chained job stands, but for the sets of what it waits for; `again_ms`: when it is looked at.
local function put_by(h, again_ms)
  redis.call('ZADD', K.deferred .. h.origin, now_s, h.id)
  redis.call('ZADD', K.chained, again_ms, chained_as(h.tenant, h.id))
  if h.expires_ms then later('ZADD', K.ttl, h.expires_ms, h.id) end
  lined_up[h.tenant] = (lined_up[h.tenant] or 0) + 1
end

-- created -> deferred
local function chain(h, pending)
  for _, other in ipairs(pending) do redis.call('SADD', dependents_of(other), h.id) end
  redis.call('SADD', dependencies_of(h.id), unpack(pending))
  put_by(h, now_ms + AGAIN_MS)
end

-- What a chained job depends on and what has ended, or is gone, unseen: id, how it ended; nothing else.
local function unseen_end(id)
  for _, other in ipairs(redis.call('SMEMBERS', dependencies_of(id))) do
    local status = redis.call('HGET', K.job .. other, 'status') or 'gone'
    if status == 'finished' or WORDS[status] then return other, status end
  end
end

-- Follows up what nobody saw, and what was left due.
local function look_again(tenant, id)
  redis.call('ZADD', K.chained, 'XX', now_ms + AGAIN_MS, chained_as(tenant, id))
  if redis.call('HGET', K.job .. id, 'status') ~= 'deferred' then return move_on(id, tenant) end
  if redis.call('EXISTS', dependencies_of(id)) == 0 then return go_into_line(load(id)) end
  local parent, ended_as = unseen_end(id)
  while parent do
    if not may_move_on(id, ended_as) then return redis.call('ZADD', K.chained, 'XX', 0, chained_as(tenant, id)) end
    move_on(id, tenant, parent, ended_as)
    parent, ended_as = unseen_end(id)
  end
end
