-- Stores a job and puts it into its lane: created -> queued.
-- ARGV: id, idempotency key ('' for none), body hash, idempotency ttl s, job ttl s (0 for none), list ttl s,
--       then the fields of the job hash as name, value pairs (tenant, origin, batch_key and delay_ms among them)
-- Returns {'stored'|'replayed'|'mismatch', job id}. Running it twice with one id stores once.
local id, idem, body, idem_ttl, ttl, list_ttl = unpack(ARGV, 1, 6)
local fields = {unpack(ARGV, 7)}
local at = {}
for i = 1, #fields, 2 do at[fields[i]] = fields[i + 1] end

if redis.call('EXISTS', K.job .. id) == 1 then return {'stored', id} end
if idem ~= '' then
  local key = K.idem .. at.tenant .. ':' .. idem
  local known = redis.call('HMGET', key, 'body', 'job')
  if known[1] and known[1] ~= body then return {'mismatch', known[2]} end
  if known[1] then return {'replayed', known[2]} end
  redis.call('HSET', key, 'body', body, 'job', id)
  redis.call('EXPIRE', key, idem_ttl)
end

local vd = now_ms + tonumber(at.delay_ms)
if tonumber(ttl) > 0 then
  local expires_ms = now_ms + tonumber(ttl) * 1000
  vd = math.min(vd, math.max(now_ms, expires_ms - tonumber(at.cost)))
  redis.call('HSET', K.job .. id, 'expires_ms', int(expires_ms))
end
redis.call('HSET', K.job .. id, 'status', 'queued', 'created_at', iso(), 'enqueued_at', iso(),
  'enqueued_ms', int(now_ms), 'vd', int(vd), 'fence', '0', unpack(fields))
enqueue(load(id))
redis.call('ZADD', K.list .. at.tenant, now_ms, id)
redis.call('ZREMRANGEBYSCORE', K.list .. at.tenant, 0, now_ms - tonumber(list_ttl) * 1000)
redis.call('EXPIRE', K.list .. at.tenant, list_ttl)
return {'stored', id}
