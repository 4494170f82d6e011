-- Cancels a job wherever it stands: queued, scheduled or deferred -> canceled at once; running -> asked to leave the
-- batch.
-- ARGV: id, error (JSON)
-- Returns 'dequeued', 'interrupting' (the worker settles it within a step), 'too_late' or 'unknown'.
local id, err = ARGV[1], ARGV[2]
local h = load(id)
if not h.exists then return 'unknown' end
if h.status == 'started' then
  redis.call('HSET', K.job .. id, 'cancel', '1')
  redis.call('PUBLISH', K.pubsub .. (h.worker_name or ''), cjson.encode({command = 'stop-job', job_id = id, by = 'client'}))
  return 'interrupting'
end
if h.status ~= 'queued' and h.status ~= 'scheduled' and h.status ~= 'deferred' then return 'too_late' end
if is_queued(h) then dequeue(h) end
if h.status == 'deferred' then
  unchain(h)
  if h.expires_ms then later('ZREM', K.ttl, id) end
end
redis.call('ZREM', K.scheduled .. h.origin, id)
redis.call('ZREM', K.deferred .. h.origin, id)
redis.call('LREM', K.queue .. h.origin, 0, id)
h.worker_name, h.start_ms = nil, nil
finish(h, {status = 'canceled', event = 'canceled', type = 3, ttl = h.failure_ttl, payload = '', exc = '',
  error = err})
flush()
return 'dequeued'
