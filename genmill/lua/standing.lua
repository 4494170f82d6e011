-- Reads how a job stands, what it waits for, and what its tenant has submitted; changes nothing.
-- ARGV: job id
-- Returns {fields of the job hash as pairs, latest result or false, waiting or false, submissions}, nothing for a job
-- that is not there. Waiting, of a queued job alone: {jobs that have to succeed first, place among those that are ready,
-- 1 when the fleet is suspended, workers of its class, then for each scope that counts it: scope, scope that stands for
-- all of its kind ('' for none), the operator's limits of both, live leases}. Submissions: {the operator's limits for the
-- tenant and for all, number in this window, seconds to its end}. What there is not is false.
local id = ARGV[1]
local fields, h = redis.call('HGETALL', K.job .. id), {}
if #fields == 0 then return nil end
for i = 1, #fields, 2 do h[fields[i]] = fields[i + 1] end
if h.collected then return nil end  -- the trace of a batch's line, see collect.lua
local tenant, class = h.tenant or 'default', h.origin or ''

local function waiting()
  local scopes = {
    'class:' .. class, '', 'tenant:' .. tenant, 'tenant:*', 'tc:' .. tenant .. ':' .. class, 'tc:*:' .. class,
    'model:' .. (h.model or ''), 'model:*', 'all', '',
  }
  local limits = redis.call('HMGET', K.limset, unpack(scopes))
  local found = {
    h.dependency_ids and redis.call('SMEMBERS', K.job .. ':' .. id .. K.dependencies) or {},
    redis.call('ZRANK', K.ready .. class .. ':' .. (h.batch_key or ''), id), redis.call('EXISTS', K.suspended),
    redis.call('SCARD', K.workers .. ':' .. class),
  }
  for i = 1, #scopes, 2 do
    for _, part in ipairs({scopes[i], scopes[i + 1], limits[i], limits[i + 1], redis.call('SCARD', K.run .. scopes[i])}) do
      found[#found + 1] = part
    end
  end
  return found
end

local function submissions()
  local limits = redis.call('HMGET', K.limset, 'rate:' .. tenant, 'rate:*')
  return {limits[1], limits[2], redis.call('GET', K.rate .. tenant), redis.call('TTL', K.rate .. tenant)}
end

local WAITS_NOT = {started = true, finished = true, failed = true, stopped = true, canceled = true}
local is_waiting = not WAITS_NOT[h.status]
local result = h.status == 'finished' and redis.call('XREVRANGE', K.results .. id, '+', '-', 'COUNT', 1)
return {fields, result and result[1] and result[1][2] or false, is_waiting and waiting(), submissions()}
