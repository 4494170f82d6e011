-- Looks whether jobs are where their status says, and puts them there if asked to.
-- ARGV: '1' to mend, then job ids
-- Returns id, fault pairs; faults are 'queued nowhere', 'running without a lease', 'lease of a job that does not run',
-- 'lease of no job', 'scheduled nowhere', 'waits for others unseen' and 'waits for what has ended'.
local is_mending, faults, seen = ARGV[1] == '1', {}, {}
local function note(id, fault) faults[#faults + 1] = id; faults[#faults + 1] = fault end

local function back_into_line(h)
  if not is_mending then return end
  redis.call('HSET', K.job .. h.id, 'status', 'queued')
  if h.batch_key and h.vd then enqueue(h) else redis.call('RPUSH', K.queue .. h.origin, h.id) end
end

local function stands_on_list(h) return redis.call('LPOS', K.queue .. h.origin, h.id) ~= false end

local function examine_chained(h)
  local name = chained_as(h.tenant, h.id)
  local again_ms = redis.call('ZSCORE', K.chained, name)
  if not again_ms then
    note(h.id, 'waits for others unseen')
    if is_mending then put_by(h, 0) end
  elseif tonumber(again_ms) > now_ms and unseen_end(h.id) then
    note(h.id, 'waits for what has ended')
    if is_mending then look_again(h.tenant, h.id) end
  end
end

local function examine(id)
  local h, packed = load(id), redis.call('HGET', K.leases, id)
  if not h.exists or not h.origin then
    if packed then note(id, 'lease of no job') end
  elseif h.status == 'queued' then
    if not is_queued(h) and not stands_on_list(h) then note(id, 'queued nowhere'); back_into_line(h) end
  elseif h.status == 'scheduled' then
    if not redis.call('ZSCORE', K.scheduled .. h.origin, id) then note(id, 'scheduled nowhere'); back_into_line(h) end
  elseif h.status == 'deferred' and h.lane == '' then  -- of those that RQ alone defers, RQ takes care
    examine_chained(h)
  elseif h.status == 'started' and not packed then
    note(id, 'running without a lease')
    back_into_line(h)
  end
  if packed and h.exists and h.status ~= 'started' then note(id, 'lease of a job that does not run') end
  if packed and h.status ~= 'started' and is_mending then release(id, packed) end
end

for i = 2, #ARGV do  -- a scan may name a key twice
  if not seen[ARGV[i]] then examine(ARGV[i]) end
  seen[ARGV[i]] = true
end
flush()
return faults
