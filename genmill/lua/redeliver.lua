-- Makes a delivery that was due before due once more, now, with its schedule from the start: one that has ended, or that
-- waits for its next attempt. It keeps its id, and its body as long as Redis still has it.
-- ARGV: key of the hash of what it tells of, id of that, delivery ('' for the latest one), Idempotency-Key ('' for none),
--       hash of the request, seconds that the key is kept, static limits (JSON)
-- Returns {verdict, delivery}: 'queued'; 'pending' (it waits for a worker, or one sends it now: it stays as it is, and only
-- the key is kept); or, and nothing is changed, 'replayed' or 'mismatch' (the key is known, with this request or another),
-- 'none' (no webhook was asked for), 'early' (none was due yet), 'unknown' (a delivery that is not, or no more, among the
-- latest) or 'limited' (its tenant has asked for too much in this minute; then scope, limit, value, seconds to wait).
local key, about, wanted, idem, request, idem_ttl_s, limits = unpack(ARGV)
local tenant, hook, start_hook, told = unpack(redis.call('HMGET', key, 'tenant', 'hook', 'start_hook', 'told'))

-- Attempts that were made, as JSON; the latest last.
local log = redis.call('LRANGE', K.deliveries .. about, 0, -1)
if not told then  -- what a worker ended that did not remember its deliveries yet
  local found = {}
  for i = #log, 1, -1 do
    local one = cjson.decode(log[i]).id
    if not found[one] then found[one], found[#found + 1] = true, one end
  end
  told = table.concat(found, ' ')
end
if told == '' then return {((hook and hook ~= '') or start_hook) and 'early' or 'none', ''} end
local id = wanted ~= '' and wanted or string.match(told, '^%S+')
if not string.find(' ' .. told .. ' ', ' ' .. id .. ' ', 1, true) then return {'unknown', id} end

local idem_key = K.idem .. tenant .. ':' .. idem
local function known()
  local kept = redis.call('HMGET', idem_key, 'body', 'job')
  if not kept[1] then return nil end
  return {kept[1] == request and 'replayed' or 'mismatch', kept[2]}
end
local function remember()
  redis.call('HSET', idem_key, 'body', request, 'job', id)
  redis.call('EXPIRE', idem_key, idem_ttl_s)
end

-- RQ's own cancel and delete leave a delivery in its lane.
local function leave_lane(tenant)
  local left_over = {id = id, lane = 'callbacks', batch_key = 'callbacks', tenant = tenant}
  if is_queued(left_over) then dequeue(left_over) end
  flush_lanes()
end

-- Of a delivery that Redis no longer has; its attempts are counted on where its log knows them.
local function write_anew()
  local event, count = string.match(id, '^cb_' .. string.gsub(about, '%-', '%%-') .. '_%d+_(%a+)'), 0
  local url = event == 'started' and start_hook or hook
  for _, entry in ipairs(log) do
    local one = cjson.decode(entry)
    if one.id == id then count = math.max(count, one.attempt) end
  end
  leave_lane(receiver_of(url))
  write_delivery(id, {id = about, tenant = tenant, url = url, event = event})
  redis.call('HSET', K.job .. id, 'attempts', count, 'attempts_before', count)
end

local function send_again(h)
  leave_lane(h.tenant)
  for _, registry in ipairs({K.scheduled, K.finished, K.failed, K.canceled}) do
    redis.call('ZREM', registry .. 'callbacks', id)
  end
  redis.call('PERSIST', K.job .. id)
  redis.call('HDEL', K.job .. id, 'ended_at', 'ended_ms', 'error', 'exc_info', 'crashes', 'postponed', 'cancel', 'progress')
  line_up_delivery({id = id, tenant = h.tenant,
    fields = {'attempts_before', redis.call('HGET', K.job .. id, 'attempts') or 0}})
end

local found = idem ~= '' and known()
if found then return found end
local h = load(id)
local is_held = redis.call('HEXISTS', K.leases, id) == 1  -- an attempt runs, also of one that RQ canceled or deleted
local is_pending = is_held or h.status == 'queued' or h.status == 'started'
if not is_pending then
  read_limits(limits)
  local broken = broken_rate(tenant)
  if broken then return {'limited', id, broken[1], tostring(broken[2]), tostring(broken[3]), broken[4]} end
  count_request(tenant)
end
if idem ~= '' then remember() end
if is_pending then return {'pending', id} end
if h.exists then send_again(h) else write_anew() end
send_waiting()
flush_lanes()
return {'queued', id}
