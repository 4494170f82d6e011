-- What a tenant may submit: waiting jobs, submissions a minute, GPU seconds a day.

local waiting_jobs, rates = {}, {}
local function waiting_of(tenant)
  if not waiting_jobs[tenant] then
    waiting_jobs[tenant] = tonumber(redis.call('HGET', K.waiting, tenant) or 0)
  end
  return waiting_jobs[tenant]
end

local function rate_of(tenant)
  if not rates[tenant] then rates[tenant] = tonumber(redis.call('GET', K.rate .. tenant) or 0) end
  return rates[tenant]
end

-- The first quota that one more job would break: scope, limit, value, seconds after which to try again.
local function broken_quota(tenant)
  local function over(name, value, retry_s)
    local most = limit_of(name .. ':' .. tenant, name .. ':*')
    if most and value() >= most then return {name .. ':' .. tenant, most, value(), retry_s()} end
  end
  return over('queued', function() return waiting_of(tenant) end, function() return 5 end)
    or over('rate', function() return rate_of(tenant) end,
      function() return math.max(1, redis.call('TTL', K.rate .. tenant)) end)
    or over('budget', function() return gpu_ms_today(tenant) / 1000 end,
      function() return 86400 - now_s % 86400 end)
end

local function count_submission(tenant)
  waiting_jobs[tenant] = waiting_of(tenant) + 1
  rates[tenant] = rate_of(tenant) + 1
  if redis.call('INCR', K.rate .. tenant) == 1 then redis.call('EXPIRE', K.rate .. tenant, RATE_WINDOW_S) end
end
