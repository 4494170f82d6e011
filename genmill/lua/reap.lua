-- Ends what nobody else will: leases that ran out (running -> queued, or failed after too many crashes), jobs that
-- waited too long (queued or deferred -> failed, error expired), and jobs that RQ's own cancel left in their lanes. Two
-- reapers at once do no harm.
-- ARGV: most jobs a call, most crashes, poisoned error (JSON), expired error (JSON), canceled error (JSON)
-- Returns {requeued, poisoned, expired, canceled} as counts.
local most, max_crashes = tonumber(ARGV[1]), tonumber(ARGV[2])
local counts = {0, 0, 0, 0}
local function fail(h, err, event, status)
  finish(h, {status = status or 'failed', event = event, type = status and 3 or 2, ttl = h.failure_ttl, payload = '',
    exc = '', error = err})
end

local function end_lease(h)
  release(h.id)
  local crashes = redis.call('HINCRBY', K.job .. h.id, 'crashes', 1)
  if h.cancel then fail(h, ARGV[5], 'canceled', 'canceled'); counts[4] = counts[4] + 1
  elseif crashes >= max_crashes then fail(h, ARGV[3], 'failed'); counts[2] = counts[2] + 1
  else
    redis.call('HSET', K.job .. h.id, 'status', 'queued')
    redis.call('HDEL', K.job .. h.id, 'progress')
    enqueue(h)
    counts[1] = counts[1] + 1
  end
end

-- What would end, with more jobs that wait for it than this run may still touch, is left to the next.
local function is_for_next(h)
  local is_to_end = h.status == 'canceled' or h.cancel or tonumber(h.crashes or 0) + 1 >= max_crashes
  return is_to_end and not has_room_for(h.id)
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', K.run .. 'global', 0, now_ms, 'LIMIT', 0, most)) do
  local h = load(id)
  if not is_for_next(h) then
    if h.status == 'started' then end_lease(h) else end_foreign(h) end
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', K.ttl, 0, now_ms, 'LIMIT', 0, most)) do
  local h = load(id)
  local is_in_line = h.status == 'queued' and is_queued(h)
  local is_to_expire = is_in_line or (h.status == 'deferred' and h.expires_ms)
  local has_room = not is_to_expire or has_room_for(id)
  if has_room then redis.call('ZREM', K.ttl, id) end
  if is_to_expire and has_room then
    if is_in_line then dequeue(h) else unchain(h) end
    h.worker_name, h.start_ms = nil, nil
    fail(h, ARGV[4], 'expired')
    counts[3] = counts[3] + 1
  end
end
flush()
-- Parked with nothing running (the limits of a worker's settings were raised): no release would ever free them.
for _, tenant in ipairs(redis.call('SMEMBERS', K.parkings)) do
  if redis.call('EXISTS', K.run .. 'tenant:' .. tenant) == 0 then unpark(tenant) end
end
flush()

-- RQ's cancel enters a job with the time of the cancel, ours with that of its removal. What a worker still has on board
-- waits until that worker has heard of it, or its lease has run out.
local function clear(id, class)
  local h = load(id)
  if h.status ~= 'canceled' or h.origin ~= class then later('ZREM', K.canceled .. class, id)
  elseif redis.call('HEXISTS', K.leases, id) == 0 and has_room_for(id) then
    if is_queued(h) then dequeue(h) end
    follow_cancel(id)
  end
end
for _, class in ipairs({'p0', 'p1', 'p2', 'p3', 'callbacks'}) do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', K.canceled .. class, 0, now_s, 'LIMIT', 0, most)) do clear(id, class) end
end
flush()
return counts
