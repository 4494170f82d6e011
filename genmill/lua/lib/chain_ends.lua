-- What the end of a job does to the chained ones (lib/chains.lua) that wait for it.

local WORDS = {failed = 'failed', canceled = 'was canceled', stopped = 'was stopped', gone = 'is gone'}

-- What is told of an ended dependency: how it ended and why; of one that itself ended so, the job where it began.
local reasons = {}
local function reason_of(parent, ended_as)
  if reasons[parent] then return reasons[parent] end
  local is_json, e = pcall(cjson.decode, redis.call('HGET', K.job .. parent, 'error') or '')
  e = is_json and type(e) == 'table' and e or {}
  local cause = type(e.message) == 'string' and e.message or nil
  if cause and e.code == 'dependency_failed' then cause = string.match(cause, '^job:%S+ [%a ]+: (job:.*)$') or cause end
  reasons[parent] = 'job:' .. parent .. ' ' .. (e.code == 'expired' and 'expired' or WORDS[ended_as])
    .. (cause and ': ' .. cause or '')
  return reasons[parent]
end

-- It waits for others no more, whatever comes next. Does nothing for a job that is not chained.
local function unchain(h)
  if redis.call('ZREM', K.chained, chained_as(h.tenant, h.id)) == 0 then return end
  lined_up[h.tenant] = (lined_up[h.tenant] or 0) - 1
  if h.origin then redis.call('ZREM', K.deferred .. h.origin, h.id) end
  for _, other in ipairs(redis.call('SMEMBERS', dependencies_of(h.id))) do
    redis.call('SREM', dependents_of(other), h.id)
  end
  redis.call('DEL', dependencies_of(h.id))
end

-- deferred -> queued, at the place that it got when it was submitted
local function go_into_line(h)
  unchain(h)
  redis.call('HSET', K.job .. h.id, 'status', 'queued', 'enqueued_at', iso())
  enqueue(h)
end

-- deferred -> canceled with a dependency that was canceled, failed with any other
local function give_up(h, parent, ended_as)
  local is_canceled = ended_as == 'canceled' or ended_as == 'stopped'
  local how = is_canceled and 'canceled' or 'failed'
  unchain(h)
  if h.expires_ms then later('ZREM', K.ttl, h.id) end
  finish(h, {status = how, event = how, type = is_canceled and 3 or 2, ttl = h.failure_ttl, payload = '', exc = '',
    error = cjson.encode({code = 'dependency_failed', message = reason_of(parent, ended_as)})})
end

-- A chained job after the end of one that it depends on. What RQ ended, deleted or queued is only forgotten here.
move_on = function(id, tenant, parent, ended_as)
  local h = load(id)
  if h.status ~= 'deferred' then
    h.tenant = tenant
    unchain(h)
  elseif ended_as ~= 'finished' then
    give_up(h, parent, ended_as)
  else
    redis.call('SREM', dependents_of(parent), id)
    redis.call('SREM', dependencies_of(id), parent)
    if redis.call('EXISTS', dependencies_of(id)) == 0 then go_into_line(h) end
  end
end
