-- Taking jobs of one batch key out of their lanes, with fence, lease, RQ's execution and registry.
-- `by`: worker, lease_ms, is_empty (nothing on board), suspect_crashes (after so many a job runs alone).

local MOST_SKIPPED = 500  -- jobs that RQ ended in their lanes, cleared away by one claim
local ROW = {'status', 'fence', 'data', 'origin', 'tenant', 'batch_key', 'vd', 'postponed', 'rows', 'cost', 'parent',
  'crashes', 'timeout', 'model', 'expires_ms', 'start_hook'}
local function row_of(h)
  return {h.id, h.fence, h.data or false, h.origin, h.tenant, h.batch_key, h.vd or false, h.postponed or false,
    h.rows or false, h.cost or false, h.parent or false, h.crashes or false, h.timeout or false}
end

local function lease(h, weight, by)
  h.fence = h.fence + 1
  redis.call('HSET', K.job .. h.id, 'status', 'started', 'started_at', iso(), 'last_heartbeat', iso(),
    'worker_name', by.worker, 'fence', int(h.fence), 'start_ms', int(now_ms), 'origin', h.origin,
    'batch_key', h.batch_key, 'tenant', h.tenant)
  if h.fence > 1 then
    redis.call('HDEL', K.job .. h.id, 'ended_at', 'ended_ms', 'error', 'exc_info', 'progress')
    redis.call('PERSIST', K.job .. h.id)
  end
  take_room(hold(h, by.worker, now_ms + by.lease_ms, weight))
  if h.start_hook and h.fence == 1 then
    emit_callback({id = h.id, fence = h.fence, tenant = h.tenant, hook = h.start_hook}, 'started')
  end
end

-- Take a job of this lane, if it fits. Returns the rows that it takes; nil when the batch is closed with it.
-- A job that RQ itself canceled or deleted while it stood in its lane only leaves the lane.
local function take(class, lane, pick, rows_free, by, out)
  local h, is_first = load((peek(lane.jobs)), ROW), #out == 0
  h.lane, h.origin, h.batch_key, h.tenant = class, class, pick.bk, lane.tenant
  local rows, is_suspect = tonumber(h.rows or 1), tonumber(h.crashes or 0) >= by.suspect_crashes
  -- More rows than free slots: only alone on an idle station, or the job would wait for ever.
  if rows > rows_free and not (is_first and pick.is_idle) then return nil end
  -- One crash short of being given up: run alone, so that no innocent company is ever given up with it.
  if is_suspect and not (is_first and by.is_empty) then why = 'suspect'; return nil end
  lane.jobs.at, picked[h.id] = lane.jobs.at + 1, true
  dequeue(h)
  if h.status == 'canceled' then follow_cancel(h.id) end
  if h.status ~= 'queued' then return 0 end
  local weight, vt = limit_of('weight:' .. h.tenant) or 1, virtual_time(h.tenant)
  lease(h, weight, by)
  set_virtual_time(h.tenant, vt + tonumber(h.cost or 1) / weight)
  out[#out + 1], out.clock, out.is_closed = h, vt, is_suspect
  return is_suspect and rows_free or rows
end

-- Take, of these classes, what fits and what the limits allow. Returns the rows left over.
local function fill(pick, open_heads, slots, by, out)
  local rows_free, skipped, scope = slots, 0, 'model:' .. pick.model
  open_classes(open_heads, pick.bk)
  while rows_free > 0 and skipped < MOST_SKIPPED and room(scope, 'model:*') > 0 do
    local class, lane = next_job(pick.bk, blocked)
    local rows = class and take(class, lane, pick, rows_free, by, out)
    if not rows then break end
    rows_free = rows_free - rows
    if rows == 0 then skipped = skipped + 1 end
  end
  if skipped == MOST_SKIPPED then why = 'paused' end
  return rows_free
end

-- A batch of what was picked; then urgent jobs that found no room take the slots of others, who rest meanwhile.
local function fill_all(pick, by, out)
  local left = fill(pick, heads[pick.bk], pick.slots, by, out)
  if pick.urgent <= 0 or out.is_closed then return end
  for _, head in ipairs(heads[pick.bk]) do
    if head.class == 'p0' then
      flush()  -- what was taken has left its lane, and is counted in its scopes
      taken_in = {}
      fill(pick, {head}, math.max(0, left) + pick.urgent, by, out)
    end
  end
end
