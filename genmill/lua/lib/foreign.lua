-- What RQ itself ended: its cancel and its delete write the job's hash and know nothing of lanes, slots and webhooks.

-- An end of ours has both fields; RQ empties ended_at of what it queues again.
local function is_told(h) return h.ended_ms ~= nil and (h.ended_at or '') ~= '' end

-- RQ canceled a job: what RQ does not do follows, once. It is kept as long as one that we cancel.
local CANCELED_FIELDS = {'status', 'fence', 'origin', 'tenant', 'hook', 'failure_ttl', 'ended_at', 'ended_ms',
  'dependency_id'}
local function follow_cancel(id)
  local h, key = load(id, CANCELED_FIELDS), K.job .. id
  local ttl = ttl_of(h.failure_ttl)
  unchain(h)
  if is_told(h) then
    local left = redis.call('TTL', key)
    later('ZADD', K.canceled .. h.origin, left < 0 and '+inf' or now_s + left + 1, id)
    return
  end
  redis.call('HSET', key, 'ended_at', iso(), 'ended_ms', int(now_ms), 'error', CANCELED)
  redis.call('HDEL', key, 'cancel', 'progress', 'lane')
  use(h, 'canceled', 1)
  emit_callback(h, 'canceled')
  later('ZADD', K.canceled .. h.origin, expiry(ttl), id)
  keep_job(h, ttl)
  note_end(h, 'canceled', ttl)
  note_line(id)
end

-- RQ itself ended a running job (its cancel or delete): free its slots; a canceled one still tells its webhook.
local function end_foreign(h)
  local had_lease = release(h.id) ~= nil
  if had_lease and h.status == 'canceled' then follow_cancel(h.id) end
end
