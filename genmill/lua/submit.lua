-- Stores jobs and puts them into their lanes: created -> queued; or deferred, while they wait for others.
-- ARGV: hash of an API key and its facts as they have to stand ('' where that is known), static limits (JSON),
--       idempotency ttl s, list ttl s, delay ms of the class, number of shared values, shared fields of the job hashes
--       as name, value pairs (tenant, origin, batch_key and cost among them), then for each job: id, idempotency key
--       ('' for none), body hash, ttl s, deadline s (0 for none), 1 for best effort, jobs that it depends on (JSON list,
--       '' for none), number of own values, own fields as pairs
-- Returns for each {'stored'|'replayed'|'mismatch', job id}; or of one that was not stored: {'limited', scope, limit,
-- value, seconds to wait} because its tenant has too many, {'late', deadline ms, soonest end ms} because it would miss
-- its deadline, {'barred', class, classes} because its tenant may not use this class, {'dependency', id, what, detail}
-- because it cannot wait for that job; or {'key'} because the API key has changed. Running it twice with one id stores
-- once, and tells that it is stored, whatever became of key and limits in between.
local has_key_changed = ARGV[1] ~= '' and redis.call('HGET', K.apikeys, ARGV[1]) ~= ARGV[2]
read_limits(ARGV[3])
local idem_ttl, list_ttl, delay_ms, shared_count = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local shared = {}
for i = 8, 7 + shared_count, 2 do shared[ARGV[i]] = ARGV[i + 1] end

local function verdict(id, idem, body)
  if redis.call('EXISTS', K.job .. id) == 1 then return {'stored', id} end
  if has_key_changed then return {'key'} end
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

local allowed = redis.call('HGET', K.classes, shared.tenant)
local function bar()
  return allowed and not string.find(allowed, shared.origin, 1, true) and {'barred', shared.origin, allowed}
end

local function refusal()
  local broken = broken_quota(shared.tenant)
  return broken and {'limited', broken[1], tostring(broken[2]), tostring(broken[3]), broken[4]}
end

-- The virtual deadline, and until when the job may wait (nil: for ever).
local function times(ttl_ms, deadline_ms, is_best_effort)
  local vd, expires_ms = now_ms + delay_ms, ttl_ms > 0 and now_ms + ttl_ms or nil
  if deadline_ms > 0 then
    local cost = tonumber(shared.cost)
    vd = math.min(vd, now_ms + math.max(0, deadline_ms - (usual_ms(shared.batch_key, cost) or cost)))
    if not is_best_effort then expires_ms = math.min(expires_ms or math.huge, now_ms + deadline_ms) end
  end
  return int(vd), expires_ms and int(expires_ms)
end

-- The answer to a job that would miss its deadline at best; nothing where it may be kept.
local function lateness(deadline_ms)
  flush()  -- those before it count
  local vd = times(0, deadline_ms, false)
  local soonest = soonest_ms(shared.origin, shared.batch_key, tonumber(shared.cost), vd)
  if not soonest or soonest <= deadline_ms then return nil end
  doubt(shared.batch_key)
  return {'late', deadline_ms, math.ceil(soonest)}
end

local function store(id, ttl_ms, deadline_ms, is_best_effort, first, last, pending)
  local h = {id = id, origin = shared.origin, lane = shared.origin, batch_key = shared.batch_key,
    tenant = shared.tenant}
  h.vd, h.expires_ms = times(ttl_ms, deadline_ms, is_best_effort)
  local fields = {unpack(ARGV, 8, 7 + shared_count)}
  for i = first, last do fields[#fields + 1] = ARGV[i] end
  if h.expires_ms then fields[#fields + 1] = 'expires_ms'; fields[#fields + 1] = h.expires_ms end
  if deadline_ms > 0 then fields[#fields + 1] = 'deadline_ms'; fields[#fields + 1] = int(now_ms + deadline_ms) end
  local fence = redis.call('HEXISTS', K.leases, id) == 1 and release(id) or 0  -- the id was deleted while it ran
  redis.call('HSET', K.job .. id, 'status', pending and 'deferred' or 'queued', 'created_at', iso(),
    'enqueued_at', iso(), 'enqueued_ms', int(now_ms), 'vd', h.vd, 'fence', int(fence),
    'lane', pending and '' or h.lane, unpack(fields))  -- '': chained, and in none yet
  if pending then chain(h, pending) else enqueue(h) end
  later('ZADD', K.list .. shared.tenant, now_ms, id)
end

local replies, at = {}, 8 + shared_count
while at <= #ARGV do
  local id, idem, body, ttl_s, deadline_s, is_best_effort, depends_on, own = unpack(ARGV, at, at + 7)
  local last, ttl_ms, deadline_ms = at + 7 + tonumber(own), tonumber(ttl_s) * 1000, tonumber(deadline_s) * 1000
  local answer, pending = verdict(id, idem, body) or bar() or refusal()
    or (deadline_ms > 0 and is_best_effort == '0' and lateness(deadline_ms)), nil
  if not answer and depends_on ~= '' then pending, answer = still_to_end(shared.tenant, cjson.decode(depends_on)) end
  if not answer then
    remember(id, idem, body)
    store(id, ttl_ms, deadline_ms, is_best_effort == '1', at + 8, last, pending)
    count_submission(shared.tenant)
    answer = {'stored', id}
  end
  replies[#replies + 1] = answer
  at = last + 1
end
flush_paces()
flush()
trim_list(shared.tenant, list_ttl)
return replies
