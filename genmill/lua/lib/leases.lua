-- What a running job holds: its lease, a slot in every scope, RQ's execution. Given up together, with flush.

-- The scopes that count a job, most general first. Deliveries count only for their queue and their host.
local function scopes(h)
  local list = {'class:' .. h.origin, 'tenant:' .. h.tenant, 'tc:' .. h.tenant .. ':' .. h.origin}
  if h.origin ~= 'callbacks' then
    list[#list + 1] = 'model:' .. h.model
    list[#list + 1] = 'all'
  end
  return list
end

local function execution_of(h) return h.id .. ':f' .. int(h.fence) end

local freed = {}  -- tenants that gave up a slot

-- What to give up stands in the lease itself: it must work when RQ has deleted or rewritten the job. Returns the
-- lease's fence and its tenant's weight at the claim; nil without a lease.
local function release(id)
  later('ZREM', K.run .. 'global', id)
  local packed = redis.call('HGET', K.leases, id)
  if not packed then return nil end
  local origin, tenant, model, worker, fence, weight = string.match(packed, ('([^\n]*)\n'):rep(5) .. '([^\n]*)')
  for _, scope in ipairs(scopes({origin = origin, tenant = tenant, model = model})) do
    later('SREM', K.run .. scope, id)
  end
  local execution = id .. ':f' .. fence
  later('ZREM', K.wip .. origin, execution)
  later('DEL', K.execution .. execution, K.executions .. id)
  later('SREM', K.worker .. worker .. ':executions', execution)
  later('HDEL', K.leases, id)
  freed[tenant], woken[origin] = true, true
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

-- Send all that waits. Slots first, then lanes, then the indexes over them.
local function flush()
  send_waiting()
  for tenant in pairs(freed) do unpark(tenant) end
  freed = {}
  flush_lanes()
end
