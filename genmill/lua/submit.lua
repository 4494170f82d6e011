-- Stores jobs and puts them into their lanes: created -> queued.
-- ARGV: static limits (JSON), idempotency ttl s, list ttl s, delay ms of the class, number of shared values, shared fields of the job
--       hashes as name, value pairs (tenant, origin, batch_key and cost among them), then for each job: id,
--       idempotency key ('' for none), body hash, ttl s (0 for none), number of own values, own fields as pairs
-- Returns for each {'stored'|'replayed'|'mismatch', job id}, or {'limited', scope, limit, value, seconds to wait} for a
-- job that was not stored because its tenant has too many. Running it twice with one id stores once.
read_limits(ARGV[1])
local idem_ttl, list_ttl, delay_ms, shared_count = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local shared = {}
for i = 6, 5 + shared_count, 2 do shared[ARGV[i]] = ARGV[i + 1] end

local function verdict(id, idem, body)
  if redis.call('EXISTS', K.job .. id) == 1 then return {'stored', id} end
  if idem == '' then return nil end
  local key = K.idem .. shared.tenant .. ':' .. idem
  local known = redis.call('HMGET', key, 'body', 'job')
  if known[1] and known[1] ~= body then return {'mismatch', known[2]} end
  if known[1] then return {'replayed', known[2]} end
end

local function remember(id, idem, body)
  if idem == '' then return end
  local key = K.idem .. shared.tenant .. ':' .. idem
  redis.call('HSET', key, 'body', body, 'job', id)
  redis.call('EXPIRE', key, idem_ttl)
end

local function refusal()
  local broken = broken_quota(shared.tenant)
  return broken and {'limited', broken[1], tostring(broken[2]), tostring(broken[3]), broken[4]}
end

local function store(id, ttl_s, first, last)
  local h = {id = id, origin = shared.origin, lane = shared.origin, batch_key = shared.batch_key,
    tenant = shared.tenant, vd = now_ms + delay_ms}
  local fields = {unpack(ARGV, 6, 5 + shared_count)}
  for i = first, last do fields[#fields + 1] = ARGV[i] end
  if ttl_s > 0 then
    h.expires_ms = int(now_ms + ttl_s * 1000)
    h.vd = math.min(h.vd, math.max(now_ms, tonumber(h.expires_ms) - tonumber(shared.cost)))
    fields[#fields + 1] = 'expires_ms'
    fields[#fields + 1] = h.expires_ms
  end
  h.vd = int(h.vd)
  local fence = redis.call('HEXISTS', K.leases, id) == 1 and release(id) or 0  -- the id was deleted while it ran
  redis.call('HSET', K.job .. id, 'status', 'queued', 'created_at', iso(), 'enqueued_at', iso(),
    'enqueued_ms', int(now_ms), 'vd', h.vd, 'fence', int(fence), 'lane', h.lane, unpack(fields))
  enqueue(h)
  later('ZADD', K.list .. shared.tenant, now_ms, id)
end

local replies, at = {}, 6 + shared_count
while at <= #ARGV do
  local id, last = ARGV[at], at + 4 + tonumber(ARGV[at + 4])
  local answer = verdict(id, ARGV[at + 1], ARGV[at + 2]) or refusal()
  if not answer then
    remember(id, ARGV[at + 1], ARGV[at + 2])
    store(id, tonumber(ARGV[at + 3]), at + 5, last)
    count_submission(shared.tenant)
    answer = {'stored', id}
  end
  replies[#replies + 1] = answer
  at = last + 1
end
flush()
local list = K.list .. shared.tenant
redis.call('ZREMRANGEBYSCORE', list, 0, now_ms - list_ttl * 1000)
redis.call('EXPIRE', list, list_ttl)
return replies
