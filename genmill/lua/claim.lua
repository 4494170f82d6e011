-- Claims one compatible batch: queued -> running, with fence, lease in every scope, RQ execution and registry.
-- ARGV: token, worker name, classes (JSON list), wants (JSON list of {batch key, slots, 1 if resident, 1 if idle,
--       slots besides that only jobs of p0 may take}),
--       lease ms, static limits (JSON object scope -> most live leases), class delays (JSON, ms),
--       1 if the worker has nothing on board, crashes after which a job runs alone
-- Returns {why, {id, fence, data, origin, tenant, batch_key, vd, postponed, rows, cost, parent, crashes, timeout},
-- ...}; why is 'ok', 'empty', 'paused' (ask again), 'suspended', 'suspect' or 'limit <scope>'. The same token returns
-- the same batch.
local token, worker, classes, wants = ARGV[1], ARGV[2], cjson.decode(ARGV[3]), cjson.decode(ARGV[4])
local lease_ms, delays = tonumber(ARGV[5]), cjson.decode(ARGV[7])
local is_empty, suspect_crashes, why = ARGV[8] == '1', tonumber(ARGV[9]), 'empty'
local MOST_SKIPPED = 500  -- jobs that RQ ended in their lanes, cleared away by one claim
local function blocked(scope) why = 'limit ' .. scope; return true end

local ROW = {'status', 'fence', 'data', 'origin', 'tenant', 'batch_key', 'vd', 'postponed', 'rows', 'cost', 'parent',
  'crashes', 'timeout', 'model', 'hook', 'expires_ms'}
local function row_of(h)
  return {h.id, h.fence, h.data or false, h.origin, h.tenant, h.batch_key, h.vd or false, h.postponed or false,
    h.rows or false, h.cost or false, h.parent or false, h.crashes or false, h.timeout or false}
end

-- A lease that ran out since the claim is no longer the caller's to hear of.
local function replay(leases)
  local out = {'ok'}
  for _, lease in ipairs(leases) do
    local h = load(lease[1], ROW)
    if h.status == 'started' and h.fence == lease[2] then out[#out + 1] = row_of(h) end
  end
  if #out == 1 then out[1] = why end
  return out
end

local heads = {}  -- batch key -> the classes that have jobs of it, each with its earliest virtual deadline
local function read_heads()
  local names = {}
  for i, want in ipairs(wants) do names[i], heads[want[1]] = want[1], {} end
  if #names == 0 then return end
  for _, class in ipairs(classes) do
    for i, vd in ipairs(redis.call('ZMSCORE', K.bkhead .. class, unpack(names))) do
      if vd then table.insert(heads[names[i]], {class = class, vd = tonumber(vd)}) end
    end
  end
end

-- The most urgent class of a batch key that has a claimable job: class, head's virtual deadline.
local function head_of(bk, is_urgent)
  local class, vd
  for _, head in ipairs(heads[bk]) do
    local c = head.class
    if (c == 'p0' or not is_urgent) and (not vd or head.vd < vd) and redis.call('ZCARD', K.act .. c .. ':' .. bk) > 0 then
      if room('class:' .. c) <= 0 then blocked('class:' .. c)
      elseif unreserved_room(c) <= 0 then blocked('all')
      else class, vd = c, head.vd end
    end
  end
  return class, vd
end

local closed = {}  -- batch keys of which nothing could be taken

-- Stay with resident models until another key's head is overdue and earlier.
local function choose()
  local resident, other
  for _, want in ipairs(wants) do
    local bk, slots, urgent = want[1], want[2], want[5]
    local class, vd
    if not closed[bk] and math.max(slots, urgent) > 0 then class, vd = head_of(bk, slots <= 0) end
    local model = string.match(bk, '^[^@]+')
    if class and not (room('model:' .. model, 'model:*') <= 0 and blocked('model:' .. model)) then
      local option = {bk = bk, slots = slots, urgent = urgent, vd = vd, model = model, is_idle = want[4] == 1}
      if want[3] == 1 then if not resident or vd < resident.vd then resident = option end
      elseif not other or vd < other.vd then other = option end
    end
  end
  if other and (not resident or (other.vd < now_ms and other.vd < resident.vd)) then return other end
  return resident
end

local function lease(h, weight)
  h.fence = h.fence + 1
  redis.call('HSET', K.job .. h.id, 'status', 'started', 'started_at', iso(), 'last_heartbeat', iso(),
    'worker_name', worker, 'fence', int(h.fence), 'start_ms', int(now_ms), 'origin', h.origin, 'batch_key', h.batch_key,
    'tenant', h.tenant)
  if h.fence > 1 then
    redis.call('HDEL', K.job .. h.id, 'ended_at', 'ended_ms', 'error', 'exc_info', 'progress')
    redis.call('PERSIST', K.job .. h.id)
  end
  take_room(hold(h, worker, now_ms + lease_ms, weight))
end

-- Take a job of this lane, if it fits. Returns the rows that it takes; nil when the batch is closed with it.
-- A job that RQ itself canceled or deleted while it stood in its lane only leaves the lane.
local function take(class, lane, pick, rows_free, is_first, out)
  local h = load((peek(lane.jobs)), ROW)
  h.lane, h.origin, h.batch_key, h.tenant = class, class, pick.bk, lane.tenant
  local rows, is_suspect = tonumber(h.rows or 1), tonumber(h.crashes or 0) >= suspect_crashes
  -- More rows than free slots: only alone on an idle station, or the job would wait for ever.
  if rows > rows_free and not (is_first and pick.is_idle) then return nil end
  -- One crash short of being given up: run alone, so that no innocent company is ever given up with it.
  if is_suspect and not (is_first and is_empty) then why = 'suspect'; return nil end
  lane.jobs.at, picked[h.id] = lane.jobs.at + 1, true
  dequeue(h)
  if h.status == 'canceled' then follow_cancel(h.id) end
  if h.status ~= 'queued' then return 0 end
  local weight, vt = limit_of('weight:' .. h.tenant) or 1, virtual_time(h.tenant)
  lease(h, weight)
  set_virtual_time(h.tenant, vt + tonumber(h.cost or 1) / weight)
  out[#out + 1], out.clock = h, vt
  out.is_closed = is_suspect
  return is_suspect and rows_free or rows
end

-- Take from one batch key, of these classes, what fits and what its limits allow. Returns the rows left over.
local function fill(pick, open_heads, slots, out)
  local rows_free, skipped = slots, 0
  open_classes(open_heads, pick.bk, slots)
  while rows_free > 0 and skipped < MOST_SKIPPED and room('model:' .. pick.model, 'model:*') > 0 do
    local class, lane = next_job(pick.bk, slots, blocked)
    local rows = class and take(class, lane, pick, rows_free, #out == 0, out)
    if not rows then break end
    rows_free = rows_free - rows
    if rows == 0 then skipped = skipped + 1 end
  end
  if skipped == MOST_SKIPPED then why = 'paused' end
  return rows_free
end

-- Urgent jobs that found no slot take those of others, who rest meanwhile.
local function fill_urgent(pick, out)
  for _, head in ipairs(heads[pick.bk]) do
    if head.class == 'p0' then
      flush()  -- what was taken has left its lane
      fill(pick, {head}, pick.urgent, out)
    end
  end
end

local known = redis.call('GET', K.token .. token)
if known then return replay(cjson.decode(known)) end
if redis.call('EXISTS', K.suspended) == 1 then return {'suspended'} end
read_limits(ARGV[6])
local pushed = {}
for i, class in ipairs(classes) do pushed[i] = K.queue .. class end
if redis.call('EXISTS', unpack(pushed)) > 0 then
  for _, class in ipairs(classes) do adopt(class, delays[class] or 0) end
end
read_heads()

local out = {}
local pick = choose()
while pick do
  if fill(pick, heads[pick.bk], pick.slots, out) <= 0 and pick.urgent > 0 and not out.is_closed then fill_urgent(pick, out) end
  if #out > 0 or string.sub(why, 1, 5) ~= 'limit' then break end
  closed[pick.bk] = true
  pick = choose()
end
if out.clock then redis.call('SET', K.vclock, out.clock) end
flush()
if #out == 0 then return {why} end
local leases, reply = {}, {'ok'}
for _, h in ipairs(out) do
  leases[#leases + 1], reply[#reply + 1] = {h.id, h.fence}, row_of(h)
end
redis.call('SET', K.token .. token, cjson.encode(leases), 'EX', 60)
for _, class in ipairs(classes) do
  if redis.call('EXISTS', K.bkhead .. class) == 1 then wake(class) break end
end
return reply
