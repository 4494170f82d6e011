-- Jobs on RQ's plain list: into lanes, ours as they are, others as plain calls.

-- A job that was only put off (RQ's scheduler moved it) keeps its place, its time to live and what it is suspected of;
-- one that is tried again gets a new place; one that had ended, or comes into another class, starts anew.
local ADOPTED = {'enqueue_at_front', unpack(FIELDS)}
local function place(h, class, delay_ms)
  local is_new = h.ended_ms or h.lane ~= class
  if h.vd and not is_new then return end
  if h.ended_ms then redis.call('PERSIST', dependents_of(h.id)) end
  h.vd = int(now_ms + (h.enqueue_at_front == '1' and 0 or delay_ms))
  redis.call('HSET', K.job .. h.id, 'vd', h.vd, 'origin', class, 'lane', class)
  if not is_new then return end
  h.lane, h.expires_ms = class, nil
  redis.call('HSET', K.job .. h.id, 'enqueued_ms', int(now_ms))
  redis.call('HDEL', K.job .. h.id, 'crashes', 'expires_ms', 'deadline_ms', 'error', 'postponed', 'cancel',
    'ended_at', 'ended_ms')
end

local function adopt_one(id, class, delay_ms)
  flush()  -- an entry that was pushed twice stands in its lane by now
  local h = load(id, ADOPTED)
  if h.status ~= 'queued' then return end  -- an entry that was pushed twice and has run since is only dropped
  if is_queued(h) then dequeue(h) end
  release(id)  -- a job deleted while it ran and pushed again under the same id
  flush()
  if not h.batch_key then
    h.tenant, h.model, h.batch_key = 'default', 'call', 'call'
    redis.call('HSET', K.job .. id, 'tenant', h.tenant, 'model', h.model, 'batch_key', h.batch_key, 'cost', 1,
      'rows', 1, 'fence', '0')
  end
  place(h, class, delay_ms)
  h.origin = class
  redis.call('PERSIST', K.job .. id)
  enqueue(h)
end

local function adopt(class, delay_ms)
  for _ = 1, 64 do
    local id = redis.call('LPOP', K.queue .. class)
    if not id then break end
    adopt_one(id, class, delay_ms)
  end
  flush()
end
