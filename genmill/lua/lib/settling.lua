-- Ends and gives back running jobs whose fence is still their own. Each is told by SETTLE_ARGS values: id, fence, outcome,
-- payload (b64 JSON or ''), error (JSON or ''), exc (b64 zlib or ''), gpu ms, delay ms, 1 if another run would fail as
-- well, ms that the run took (0 where it is not known), bytes of its outputs.
--   outcome: finished | failed | canceled | stopped   running -> that terminal state; finished and failed, where RQ's
--                                                     Repeat and Retry say so, -> scheduled, or queued at once
--            scheduled                                running -> scheduled for now + delay ms (RQ's registry)
--            returned                                 running -> queued at its old virtual deadline, nothing charged
local SETTLE_ARGS = 11
local EVENTS = {finished = 'succeeded', failed = 'failed', canceled = 'canceled', stopped = 'canceled'}
local TYPES = {finished = 1, failed = 2, canceled = 3, stopped = 3}

local function charge(h, gpu_ms, weight)
  local owed = (gpu_ms - tonumber(h.cost or 1)) / (weight or 1)
  set_virtual_time(h.tenant, math.max(0, virtual_time(h.tenant) + owed))
  reindex(h.origin, h.batch_key, h.tenant)  -- what it owes says when it is next; its lanes are as they were
end

local ENDING = {'status', 'fence', 'origin', 'tenant', 'batch_key', 'cost', 'worker_name', 'hook', 'result_ttl',
  'failure_ttl', 'cancel', 'start_ms', 'settled', 'gpu_ms', 'progress', 'dependency_id', 'retries_left', 'repeats_left'}

local function settle(packed, id, fence, outcome, payload, err, exc, gpu_ms, delay_ms, is_hopeless, run_ms,
    output_bytes)
  local is_end = EVENTS[outcome] ~= nil
  local h, mark = load(id, is_end and ENDING or FIELDS), fence .. ':' .. outcome
  if not h.exists or h.fence ~= tonumber(fence) then return 'stale' end
  if h.status ~= 'started' then
    if h.settled == mark then return 'again' end
    if h.status ~= 'queued' then end_foreign(h) end
    return 'stale'
  end
  local _, weight = release(id, packed)
  charge(h, outcome == 'returned' and 0 or tonumber(gpu_ms), weight)
  if h.cancel and (outcome == 'returned' or outcome == 'scheduled') then
    finish(h, {status = 'canceled', event = 'canceled', type = 3, ttl = h.failure_ttl, payload = '', exc = '',
      error = CANCELED, settled = mark})
  elseif outcome == 'returned' then
    redis.call('HSET', K.job .. id, 'status', 'queued', 'settled', mark)
    redis.call('HDEL', K.job .. id, 'progress')
    enqueue(h)
  elseif outcome == 'scheduled' then
    redis.call('HSET', K.job .. id, 'status', 'scheduled', 'error', err, 'settled', mark,
      'postponed', int(tonumber(h.postponed or 0) + 1))
    later('ZADD', K.scheduled .. h.origin, math.floor((now_ms + tonumber(delay_ms)) / 1000), id)
  else
    h.gpu_ms = tonumber(h.gpu_ms or 0) + tonumber(gpu_ms)
    use(h, 'gpu_ms', tonumber(gpu_ms))
    use(h, 'output_bytes', tonumber(output_bytes))
    if outcome == 'finished' and run_ms ~= '0' then learn(h, tonumber(gpu_ms), tonumber(run_ms)) end
    end_run(h, {status = outcome, payload = payload, error = err, exc = exc, event = EVENTS[outcome],
      type = TYPES[outcome], ttl = outcome == 'finished' and h.result_ttl or h.failure_ttl, settled = mark},
      is_hopeless == '1')
  end
  return 'ok'
end

-- What becomes of the jobs of args[first..last]: for each 'ok', 'again' (this very commit was made before) or 'stale' (the
-- lease was lost; nothing changed).
local function settle_all(args, first, last)
  local ids, verdicts = {}, {}
  for at = first, last, SETTLE_ARGS do ids[#ids + 1] = args[at] end
  if not ids[1] then return verdicts end
  for i, packed in ipairs(redis.call('HMGET', K.leases, unpack(ids))) do
    local at = first + (i - 1) * SETTLE_ARGS
    verdicts[i] = settle(packed, unpack(args, at, at + SETTLE_ARGS - 1))
  end
  flush_paces()
  flush()
  return verdicts
end
