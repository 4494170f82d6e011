-- Claims one compatible batch: queued -> running, with fence, lease in every scope, RQ execution and registry.
-- ARGV: token, worker name, classes (JSON list), wants (JSON list of {batch key, slots, 1 if resident, 1 if idle}),
--       lease ms, static limits (JSON object scope -> most live leases), execution ttl s, class delays (JSON, ms),
--       1 if the worker has nothing on board, crashes after which a job runs alone
-- Returns {why, {id, fence, data, origin, tenant, batch_key, vd, enqueued_ms, rows, cost, parent, crashes, timeout},
-- ...}; why is 'ok', 'empty', 'suspended', 'suspect' or 'limit <scope>'. The same token returns the same batch.
local token, worker, classes, wants = ARGV[1], ARGV[2], cjson.decode(ARGV[3]), cjson.decode(ARGV[4])
local lease_ms, limits, execution_ttl, delays = tonumber(ARGV[5]), cjson.decode(ARGV[6]), ARGV[7], cjson.decode(ARGV[8])
local is_empty, suspect_crashes, why = ARGV[9] == '1', tonumber(ARGV[10]), 'empty'

-- A lease that ran out since the claim is no longer the caller's to hear of.
local function reply(leases)
  local out = {#leases > 0 and 'ok' or why}
  for _, lease in ipairs(leases) do
    local row = redis.call('HMGET', K.job .. lease[1], 'fence', 'data', 'origin', 'tenant', 'batch_key', 'vd',
      'enqueued_ms', 'rows', 'cost', 'parent', 'crashes', 'timeout', 'status')
    if table.remove(row) == 'started' and tonumber(row[1]) == lease[2] then
      table.insert(row, 1, lease[1])
      out[#out + 1] = row
    end
  end
  return out
end

local known = redis.call('GET', K.token .. token)
if known then return reply(cjson.decode(known)) end
if redis.call('EXISTS', K.suspended) == 1 then return {'suspended'} end

local published = redis.call('HMGET', K.lim, 'limits', 'expires_ms')
if published[1] and tonumber(published[2]) > now_ms then
  for scope, most in pairs(cjson.decode(published[1])) do limits[scope] = most end
end
local function room(scope, default)
  local most = limits[scope] or (default and limits[default])
  return most and most - redis.call('SCARD', K.run .. scope) or math.huge
end
local function blocked(scope) why = 'limit ' .. scope; return true end

-- Jobs that a foreign tool pushed on the plain list: into lanes, ours as they are, others as plain calls.
local function adopt(class)
  for _ = 1, 64 do
    local id = redis.call('LPOP', K.queue .. class)
    if not id then return end
    local h = load(id)
    if h.status == 'queued' then  -- an entry that was pushed twice and has run since is only dropped
      if is_queued(h) then dequeue(h) end
      release(id)  -- a job deleted while it ran and pushed again under the same id
      if not h.batch_key then
        redis.call('HSET', K.job .. id, 'tenant', 'default', 'model', 'call', 'batch_key', 'call', 'cost', 1,
          'rows', 1, 'origin', class, 'fence', '0')
      end
      redis.call('HSET', K.job .. id, 'vd', int(now_ms + (delays[class] or 0)), 'enqueued_ms', int(now_ms),
        'status', 'queued', 'origin', class)
      redis.call('HDEL', K.job .. id, 'crashes', 'expires_ms', 'error')
      redis.call('PERSIST', K.job .. id)
      enqueue(load(id))
    end
  end
end
for _, class in ipairs(classes) do adopt(class) end

-- The most urgent class of a batch key that has a claimable job: class, head's virtual deadline.
local function head_of(bk)
  local class, vd
  for _, c in ipairs(classes) do
    local head = redis.call('ZSCORE', K.bkhead .. c, bk)
    if head and redis.call('ZCARD', K.act .. c .. ':' .. bk) > 0 and (not vd or tonumber(head) < vd) then
      if room('class:' .. c) > 0 then class, vd = c, tonumber(head) else blocked('class:' .. c) end
    end
  end
  return class, vd
end

-- Stay with resident models until another key's head is overdue and earlier.
local function choose()
  local resident, other
  for _, want in ipairs(wants) do
    local bk, slots = want[1], want[2]
    local class, vd = head_of(bk)
    local model = string.match(bk, '^[^@]+')
    if class and slots > 0 and not (room('model:' .. model, 'model:*') <= 0 and blocked('model:' .. model)) then
      local option = {bk = bk, slots = slots, vd = vd, model = model, is_idle = want[4] == 1}
      if want[3] == 1 then if not resident or vd < resident.vd then resident = option end
      elseif not other or vd < other.vd then other = option end
    end
  end
  if other and (not resident or (other.vd < now_ms and other.vd < resident.vd)) then return other end
  return resident
end

-- The tenant with the least virtual time; stale entries are moved back, tenants at their cap parked.
local function next_tenant(class, bk)
  local key = class .. ':' .. bk
  while true do
    local top = redis.call('ZRANGE', K.act .. key, 0, 0, 'WITHSCORES')
    local tenant = top[1]
    if not tenant then return nil end
    local vt, tc = virtual_time(tenant), 'tc:' .. tenant .. ':' .. class
    if redis.call('EXISTS', K.lane .. key .. ':' .. tenant) == 0 then redis.call('ZREM', K.act .. key, tenant)
    elseif room('tenant:' .. tenant, string.sub(tenant, 1, 5) == 'host:' and 'host:*' or 'tenant:*') <= 0
      or room(tc, 'tc:*:' .. class) <= 0 then
      blocked('tenant:' .. tenant)
      redis.call('ZREM', K.act .. key, tenant)
      redis.call('SADD', K.parked .. key, tenant)
      redis.call('SADD', K.parkings, tenant)
    elseif vt > tonumber(top[2]) + 0.001 then redis.call('ZADD', K.act .. key, vt, tenant)
    else return tenant end
  end
end

-- nil for a job that RQ itself canceled or deleted while it stood in its lane: it only leaves the lane.
local function lease(id, class, bk, tenant)
  local h = load(id)
  h.lane, h.origin, h.batch_key, h.tenant = class, class, bk, tenant
  dequeue(h)
  if h.status == 'canceled' then emit_callback(h, 'canceled') end
  if h.status ~= 'queued' then return nil end
  h.fence = h.fence + 1
  redis.call('HSET', K.job .. id, 'status', 'started', 'started_at', iso(), 'last_heartbeat', iso(),
    'worker_name', worker, 'fence', int(h.fence), 'start_ms', int(now_ms), 'origin', class, 'batch_key', bk,
    'tenant', tenant)
  redis.call('HSET', K.lease .. id, 'origin', class, 'tenant', tenant, 'model', h.model or '', 'worker', worker,
    'fence', int(h.fence))
  redis.call('HDEL', K.job .. id, 'lane', 'ended_at', 'ended_ms', 'error', 'exc_info', 'progress')
  redis.call('PERSIST', K.job .. id)
  redis.call('ZADD', K.run .. 'global', now_ms + lease_ms, id)
  for _, scope in ipairs(scopes(h)) do redis.call('SADD', K.run .. scope, id) end
  local execution = execution_of(h)
  redis.call('ZADD', K.wip .. h.origin, '+inf', execution)
  redis.call('HSET', K.execution .. execution, 'id', 'f' .. int(h.fence), 'job_id', id, 'worker_name', worker,
    'created_at', tostring(now_ms / 1000), 'last_heartbeat', tostring(now_ms / 1000))
  redis.call('EXPIRE', K.execution .. execution, execution_ttl)
  redis.call('ZADD', K.executions .. id, '+inf', 'f' .. int(h.fence))
  redis.call('EXPIRE', K.executions .. id, execution_ttl)
  redis.call('SADD', K.worker .. worker .. ':executions', execution)
  redis.call('EXPIRE', K.worker .. worker .. ':executions', execution_ttl)
  return h
end

local pick, leases = choose(), {}
if not pick then return {why} end
local free = math.min(pick.slots, room('all'), room('model:' .. pick.model, 'model:*'))
if free <= 0 then return {'limit all'} end
while free > 0 do
  local class = head_of(pick.bk)
  local tenant = class and next_tenant(class, pick.bk)
  if not class then break end
  if tenant then
    local key = class .. ':' .. pick.bk
    local id = redis.call('ZRANGE', K.lane .. key .. ':' .. tenant, 0, 0)[1]
    local facts = redis.call('HMGET', K.job .. id, 'rows', 'crashes')
    local rows, is_suspect = tonumber(facts[1] or 1), tonumber(facts[2] or 0) >= suspect_crashes
    -- More rows than free slots: only alone on an idle station, or the job would wait for ever.
    if rows > free and (#leases > 0 or not pick.is_idle) then break end
    -- One crash short of being given up: run alone, so that no innocent company is ever given up with it.
    if is_suspect and (#leases > 0 or not is_empty) then
      why = 'suspect'
      break
    end
    local h = lease(id, class, pick.bk, tenant)
    if h then
      local vt = virtual_time(tenant)
      local weight = tonumber(limits['weight:' .. tenant] or 1)
      redis.call('SET', K.vclock, vt)
      redis.call('HSET', K.vt, tenant, vt + tonumber(h.cost or 1) / weight)
      leases[#leases + 1] = {id, h.fence}
      free = is_suspect and 0 or free - rows
    end
  end
end
if #leases > 0 then
  redis.call('SET', K.token .. token, cjson.encode(leases), 'EX', 60)
  local class = head_of(pick.bk)
  if class then wake(class) end
end
return reply(leases)
