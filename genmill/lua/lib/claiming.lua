-- Claims one compatible batch: queued -> running, with fence, lease in every scope, RQ execution and registry. Told by
-- token, worker name, classes (JSON list), wants (JSON list, see lib/choice.lua), lease ms, static limits (JSON object
-- scope -> most live leases), class delays (JSON, ms), 1 if the worker has nothing on board, crashes after which a job
-- runs alone.

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

local function adopt_all(classes, delays)
  local pushed = {}
  for i, class in ipairs(classes) do pushed[i] = K.queue .. class end
  if redis.call('EXISTS', unpack(pushed)) == 0 then return end
  for _, class in ipairs(classes) do adopt(class, delays[class] or 0) end
end

-- {why, {id, fence, data, origin, tenant, batch_key, vd, postponed, rows, cost, parent, crashes, timeout}, ...}; why is
-- 'ok', 'empty', 'paused' (ask again), 'suspended', 'suspect', 'limit <scope>' or 'swap <batch key>' (it is overdue, and
-- another model has to go first). The same token returns the same batch.
local function claim_batch(args, first)
  local token, worker, classes, wants, lease_ms, _, delays = unpack(args, first, first + 6)
  classes, wants, delays = cjson.decode(classes), cjson.decode(wants), cjson.decode(delays)
  local by = {worker = worker, lease_ms = tonumber(lease_ms), is_empty = args[first + 7] == '1',
    suspect_crashes = tonumber(args[first + 8])}
  local known = redis.call('GET', K.token .. token)
  if known then return replay(cjson.decode(known)) end
  if redis.call('EXISTS', K.suspended) == 1 then return {'suspended'} end
  read_limits(args[first + 5])
  adopt_all(classes, delays)
  wants = with_sets(classes, wants)
  read_heads(classes, wants)

  local out = {}
  local pick = choose(wants)
  while pick do
    if pick.is_crowded then why = 'swap ' .. pick.bk; break end
    fill_all(pick, by, out)
    if #out > 0 or string.sub(why, 1, 5) ~= 'limit' then break end
    closed[pick.bk] = true
    pick = choose(wants)
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
end
