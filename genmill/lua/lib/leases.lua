-- What a running job holds: its lease, a slot in every scope, RQ's execution. Given up together, with flush.

-- The scopes that count a job, most general first. Deliveries count only for their queue and their host.
local function scopes_of(origin, tenant, model)
  local list = {'class:' .. origin, 'tenant:' .. tenant, 'tc:' .. tenant .. ':' .. origin}
  if origin ~= 'callbacks' then
    list[#list + 1] = 'model:' .. model
    list[#list + 1] = 'all'
  end
  return list
end

local function execution_of(h) return h.id .. ':f' .. int(h.fence) end

-- Jobs whose leases change alike (class, tenant, model, worker) are counted together: one command a scope.
local holders, freed, released, over = {}, {}, {}, {}
local function holder_of(what)
  if not holders[what] then
    local origin, tenant, model, worker = string.match(what, '([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)')
    holders[what] = {origin = origin, tenant = tenant, worker = worker, scopes = scopes_of(origin, tenant, model),
      taken = {}, taken_executions = {}, given = {}, given_executions = {}}
  end
  return holders[what]
end

local function flush_holders()
  for _, held in pairs(holders) do
    local executions = K.worker .. held.worker .. ':executions'
    if held.given[1] then
      for _, scope in ipairs(held.scopes) do later_all('SREM', K.run .. scope, held.given) end
      later_all('ZREM', K.wip .. held.origin, held.given_executions)
      later_all('SREM', executions, held.given_executions)
      later_all('ZREM', K.run .. 'global', held.given)
      later_all('HDEL', K.leases, held.given)
      freed[held.tenant], woken[held.origin] = true, true
    end
    if held.taken[1] then
      for _, scope in ipairs(held.scopes) do later_all('SADD', K.run .. scope, held.taken) end
      later_all('SADD', executions, held.taken_executions)
    end
  end
  if over[1] then redis.call('DEL', unpack(over)) end
  holders, released, over = {}, {}, {}
end

-- Take what a running job holds, until `expires_ms`; `weight` is its tenant's.
local function hold(h, worker, expires_ms, weight)
  local what, execution = h.origin .. '\n' .. h.tenant .. '\n' .. (h.model or '') .. '\n' .. worker, execution_of(h)
  local held = holder_of(what)
  held.taken[#held.taken + 1], held.taken_executions[#held.taken_executions + 1] = h.id, execution
  later('HSET', K.leases, h.id, int(h.fence) .. '\n' .. weight .. '\n' .. what)
  later('ZADD', K.run .. 'global', expires_ms, h.id)
  later('ZADD', K.wip .. h.origin, '+inf', execution)
  redis.call('HSET', K.execution .. execution, 'id', 'f' .. int(h.fence), 'job_id', h.id, 'worker_name', worker,
    'created_at', stamp(now_ms), 'last_heartbeat', stamp(now_ms))
  return held.scopes
end

-- What to give up stands in the lease itself: it must work when RQ has deleted or rewritten the job. Returns the
-- lease's fence and its tenant's weight at the claim; nil without a lease. `packed`: the lease, if it was read.
local function release(id, packed)
  packed = not released[id] and (packed or redis.call('HGET', K.leases, id))
  if not packed then later('ZREM', K.run .. 'global', id); return nil end
  released[id] = true
  local fence, weight, what = string.match(packed, '([^\n]*)\n([^\n]*)\n(.*)')
  local held, execution = holder_of(what), id .. ':f' .. fence
  held.given[#held.given + 1], held.given_executions[#held.given_executions + 1] = id, execution
  over[#over + 1] = K.execution .. execution
  return tonumber(fence), tonumber(weight)
end

-- Back into every fair index that it was taken out of; costs one command for a tenant that is not parked.
local function unpark(tenant)
  if redis.call('SREM', K.parkings, tenant) == 0 then return end
  for _, class in ipairs({'p0', 'p1', 'p2', 'p3', 'callbacks'}) do
    for _, bk in ipairs(redis.call('ZRANGE', K.bkhead .. class, 0, -1)) do
      if redis.call('SREM', K.parked .. class .. ':' .. bk, tenant) == 1 then
        touch(class, bk, tenant)
        woken[class] = true
      end
    end
  end
end
