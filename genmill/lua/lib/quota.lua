-- What a tenant may submit: waiting jobs, submissions a minute (webhooks that it has sent once more count as one each),
-- GPU seconds a day.

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

-- Of a quota that one more would break: scope, limit, value, seconds after which to try again.
local function over(name, tenant, value, retry_s)
  local most = limit_of(name .. ':' .. tenant, name .. ':*')
  if most and value(tenant) >= most then return {name .. ':' .. tenant, most, value(tenant), retry_s()} end
end

local function broken_rate(tenant)
  return over('rate', tenant, rate_of, function() return math.max(1, redis.call('TTL', K.rate .. tenant)) end)
end

-- The first that one more job would break.
local function broken_quota(tenant)
  return over('queued', tenant, waiting_of, function() return 5 end) or broken_rate(tenant)
    or over('budget', tenant, function() return gpu_ms_today(tenant) / 1000 end,
      function() return 86400 - now_s % 86400 end)
end

local function count_request(tenant)
  rates[tenant] = rate_of(tenant) + 1
  if redis.call('INCR', K.rate .. tenant) == 1 then redis.call('EXPIRE', K.rate .. tenant, RATE_WINDOW_S) end
end

local function count_submission(tenant)
  waiting_jobs[tenant] = waiting_of(tenant) + 1
  count_request(tenant)
end
