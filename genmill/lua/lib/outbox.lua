-- The outbox: a webhook's delivery becomes a job of the queue `callbacks` in the same script as what it tells of.

local MOST_TOLD = 5  -- deliveries that a job or batch remembers, the latest first; each run that tells has one

-- A delivery gets its place, new or as it stood. c: id, tenant (its receiver), fields (names and values that are its own)
local function line_up_delivery(c)
  c.origin, c.lane, c.batch_key, c.vd = 'callbacks', 'callbacks', 'callbacks', int(now_ms)
  redis.call('HSET', K.job .. c.id, 'status', 'queued', 'origin', c.origin, 'lane', c.lane, 'enqueued_at', iso(),
    'enqueued_ms', c.vd, 'vd', c.vd, unpack(c.fields))
  enqueue(c)
end

-- The tenant of deliveries to that URL.
local function receiver_of(url) return 'host:' .. (string.match(url, '^%a+://([^/?#]+)') or 'unknown') end

-- o: what it tells of (id, tenant, url, event)
local function write_delivery(id, o)
  local receiver = receiver_of(o.url)
  line_up_delivery({id = id, tenant = receiver, fields = {'created_at', iso(),
    'data', cjson.encode({'worker.tasks.deliver', cjson.null, {o.id, o.event}, {}}),
    'description', 'deliver ' .. o.event .. ' of ' .. o.id, 'timeout', 60, 'result_ttl', 86400, 'failure_ttl', 604800,
    'tenant', receiver, 'model', 'callback', 'batch_key', 'callbacks', 'cost', 1, 'rows', 1, 'fence', 0,
    'parent', o.id, 'owner', o.tenant, 'url', o.url}})
end

-- `key`: of the hash that remembers the delivery
local function emit_callback(h, event, key)
  if not h.hook or h.hook == '' then return end
  local id, count = 'cb_' .. h.id .. '_' .. int(h.fence) .. '_' .. event, 1
  if redis.call('EXISTS', K.job .. id) == 1 then id = id .. '_' .. int(now_ms) end  -- requeued, and ended again
  key = key or K.job .. h.id
  local told = {id}
  for old in string.gmatch(redis.call('HGET', key, 'told') or '', '%S+') do
    count = count + 1
    if count <= MOST_TOLD then told[count] = old end
  end
  redis.call('HSET', key, 'told', table.concat(told, ' '))
  write_delivery(id, {id = h.id, tenant = h.tenant, url = h.hook, event = event})
end

