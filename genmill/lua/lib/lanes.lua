-- Where queued jobs stand: lane, ready index, fair index, heads. A job's place is one of: lane (queued), run:global
-- (running), a registry (ended, scheduled). enqueue and dequeue take effect with flush, which ends every script.

-- The field `lane` is the class whose lane the job stands in; RQ rewrites `origin` when it enqueues a job again.
local function is_queued(h)
  return h.lane ~= nil and redis.call('ZSCORE', K.ready .. h.lane .. ':' .. h.batch_key, h.id) ~= false
end

local vts, charged = {}, {}
local function virtual_time(tenant)
  if not vts[tenant] then vts[tenant] = tonumber(redis.call('HGET', K.vt, tenant) or 0) end
  return vts[tenant]
end
local function set_virtual_time(tenant, vt) vts[tenant], charged[tenant] = vt, true end

-- Wakes one idle worker, which wakes the next when it leaves work behind. An entry that nobody took yet will do.
local function wake(class)
  if redis.call('EXISTS', K.wake .. class) == 1 then return end
  redis.call('LPUSH', K.wake .. class, '1')
  redis.call('EXPIRE', K.wake .. class, 60)
end

-- class -> batch key -> tenants to index anew; class:batch key where jobs came or went; classes whose workers have
-- something new, and those that got jobs
local touched, moved, woken, stocked = {}, {}, {}, {}
local function reindex(class, bk, tenant)
  touched[class] = touched[class] or {}
  touched[class][bk] = touched[class][bk] or {}
  touched[class][bk][tenant] = true
end
local function touch(class, bk, tenant)
  reindex(class, bk, tenant)
  moved[class .. ':' .. bk] = true
end

local lined_up = {}  -- tenant -> by how much its number of waiting jobs changes

local function enqueue(h)
  if h.lane ~= h.origin then redis.call('HSET', K.job .. h.id, 'lane', h.origin) end
  if h.expires_ms then later('ZADD', K.ttl, h.expires_ms, h.id) end
  local key = h.origin .. ':' .. h.batch_key
  later('ZADD', K.lane .. key .. ':' .. h.tenant, h.vd, h.id)
  later('ZADD', K.ready .. key, h.vd, h.id)
  touch(h.origin, h.batch_key, h.tenant)
  lined_up[h.tenant] = (lined_up[h.tenant] or 0) + 1
  woken[h.origin], stocked[h.origin] = true, true
end

local function dequeue(h)
  local key = h.lane .. ':' .. h.batch_key
  later('ZREM', K.lane .. key .. ':' .. h.tenant, h.id)
  later('ZREM', K.ready .. key, h.id)
  if h.expires_ms then later('ZREM', K.ttl, h.id) end
  touch(h.lane, h.batch_key, h.tenant)
  lined_up[h.tenant] = (lined_up[h.tenant] or 0) - 1
end

-- The fair index follows the lane. A tenant that comes back from idle starts at the virtual clock, so that idling
-- saves nothing up; one at its cap stays parked.
local function index_tenant(class, bk, tenant)
  local key = class .. ':' .. bk
  if redis.call('EXISTS', K.lane .. key .. ':' .. tenant) == 0 then
    redis.call('ZREM', K.act .. key, tenant)
    redis.call('SREM', K.parked .. key, tenant)
  elseif redis.call('SISMEMBER', K.parked .. key, tenant) == 0 then
    local score = redis.call('ZSCORE', K.act .. key, tenant)
    if not score then
      local clock = tonumber(redis.call('GET', K.vclock) or 0)
      if clock > virtual_time(tenant) then set_virtual_time(tenant, clock) end
    end
    if not score or tonumber(score) ~= virtual_time(tenant) then
      redis.call('ZADD', K.act .. key, virtual_time(tenant), tenant)
    end
  end
end

local function refresh_head(class, bk)
  local head = redis.call('ZRANGE', K.ready .. class .. ':' .. bk, 0, 0, 'WITHSCORES')
  if head[1] then redis.call('ZADD', K.bkhead .. class, head[2], bk)
  else redis.call('ZREM', K.bkhead .. class, bk) end
end

local function flush_lanes()
  for class, keys in pairs(touched) do
    for bk, tenants in pairs(keys) do
      for tenant in pairs(tenants) do index_tenant(class, bk, tenant) end
      if moved[class .. ':' .. bk] then refresh_head(class, bk) end
    end
  end
  for class in pairs(stocked) do redis.call('SADD', K.queues, K.queue .. class) end
  for class in pairs(woken) do wake(class) end
  for tenant in pairs(charged) do later('HSET', K.vt, tenant, vts[tenant]) end
  send_waiting()
  for tenant, change in pairs(lined_up) do
    if change ~= 0 and redis.call('HINCRBY', K.waiting, tenant, change) <= 0 then
      redis.call('HDEL', K.waiting, tenant)
    end
  end
  touched, moved, woken, stocked, charged, lined_up = {}, {}, {}, {}, {}, {}
end

-- A tenant's list holds the jobs that may still be there.
local function trim_list(tenant, ttl_s)
  redis.call('ZREMRANGEBYSCORE', K.list .. tenant, 0, now_ms - ttl_s * 1000)
  redis.call('EXPIRE', K.list .. tenant, ttl_s)
end
