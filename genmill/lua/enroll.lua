-- Takes a batch in whose lines are stored: from now on the scheduler feeds it.
-- ARGV: id, tenant, digest of the body, most active batches of the tenant, record's ttl s, expires in s, id of the batch
--       that this one resumes ('' for none), 1 to run lines again that an earlier batch has run, then fields of the record
--       as pairs
-- Returns {'created', id}; or, and nothing is changed, {'known', id} of a batch with this body that runs or has
-- succeeded in all lines, {'unfinished', id} of one that ended with lines missing or failed and that this one does not
-- resume, {'full', number of active ones}, or {'late'} when what the intake stored may have been cleared away.
local id, tenant, digest, most, ttl_s, expires_s, resumes = unpack(ARGV, 1, 7)
local is_rerun = ARGV[8] == '1'
local body_key = K.batchbody .. tenant .. ':' .. digest
local ACTIVE = {in_progress = true, cancelling = true, expiring = true}

local function earlier()
  local other = redis.call('GET', body_key)
  if not other then return nil end
  local state, total, succeeded = unpack(redis.call('HMGET', K.batch .. other, 'state', 'total', 'succeeded'))
  if not state then return nil end
  if ACTIVE[state] or total == succeeded then return {'known', other} end
  return other ~= resumes and {'unfinished', other} or nil
end

local function active_ones()
  local count = 0
  for _, other in ipairs(redis.call('ZRANGE', K.batches, 0, -1)) do
    if redis.call('HGET', K.batch .. other, 'tenant') == tenant then count = count + 1 end
  end
  return count
end

-- The oldest of the tenant's list, as far as they are gone.
local function trim_batches()
  for _, other in ipairs(redis.call('ZRANGE', K.batchlist .. tenant, 0, 19)) do
    if redis.call('EXISTS', K.batch .. other) == 0 then redis.call('ZREM', K.batchlist .. tenant, other) end
  end
end

if redis.call('EXISTS', K.batch .. id) == 1 then return {'created', id} end
local found = not is_rerun and earlier()
if found then return found end
local active = active_ones()
if active >= tonumber(most) then return {'full', active} end
if not redis.call('ZSCORE', K.shelf, id) then return {'late'} end
redis.call('HSET', K.batch .. id, 'state', 'in_progress', 'tenant', tenant, 'body', digest, 'created_ms', int(now_ms),
  'expires_ms', int(now_ms + 1000 * tonumber(expires_s)), 'fed', 0, 'done', 0, 'succeeded', 0, 'failed', 0,
  'canceled', 0, 'pace_ms', int(now_ms), 'pace_done', 0, 'mark_ms', int(now_ms), 'mark_done', 0, unpack(ARGV, 9))
redis.call('EXPIRE', K.batch .. id, ttl_s)
redis.call('SET', body_key, id, 'EX', ttl_s)
redis.call('ZADD', K.batches, now_ms, id)
trim_batches()
redis.call('ZADD', K.batchlist .. tenant, now_ms, id)
redis.call('EXPIRE', K.batchlist .. tenant, math.max(tonumber(ttl_s), redis.call('TTL', K.batchlist .. tenant)))
redis.call('ZADD', K.shelf, now_ms + 1000 * tonumber(ttl_s), id)
return {'created', id}
