-- What tenants use, by day (UTC): for each a row of numbers, in the order of USES. A script adds all of its jobs up
-- and writes once, however many tenants and numbers they touch.
local USES = {'gpu_ms', 'succeeded', 'failed', 'canceled', 'expired', 'output_bytes'}

local function today() return string.sub(iso(), 1, 10) end

local uses = {}
local function use(h, what, number)  -- deliveries belong to a host, and a job that RQ alone knows to nobody
  if number == 0 or not h.tenant or h.origin == 'callbacks' then return end
  local row = uses[h.tenant] or {}
  uses[h.tenant], row[what] = row, (row[what] or 0) + number
end

local function row_with(text, more)
  local row, old = {}, string.gmatch(text or '', '%S+')
  for i, what in ipairs(USES) do row[i] = tonumber(old() or 0) + (more[what] or 0) end
  return string.format('%.3f %.0f %.0f %.0f %.0f %.0f', unpack(row))
end

local function flush_uses()
  if not next(uses) then return end
  local key, tenants, pairs_of_day, is_new = K.usage .. today(), {}, {}, false
  for tenant in pairs(uses) do tenants[#tenants + 1] = tenant end
  for i, text in ipairs(redis.call('HMGET', key, unpack(tenants))) do
    is_new = is_new or not text
    pairs_of_day[2 * i - 1], pairs_of_day[2 * i] = tenants[i], row_with(text or nil, uses[tenants[i]])
  end
  redis.call('HSET', key, unpack(pairs_of_day))
  if is_new then redis.call('EXPIRE', key, USAGE_TTL_S) end
  uses = {}
end

local function gpu_ms_today(tenant)
  return tonumber(string.match(redis.call('HGET', K.usage .. today(), tenant) or '0', '^%S+'))
end
