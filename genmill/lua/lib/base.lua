-- Time, numbers, the job hash, and changes that wait to be sent together.

local T = redis.call('TIME')
local now_s, now_ms = tonumber(T[1]), tonumber(T[1]) * 1000 + math.floor(tonumber(T[2]) / 1000)

-- Formatting costs as much as a command; the jobs of a batch have most of their numbers in common.
local ints, stamps = {}, {}
local function int(n)
  if not ints[n] then ints[n] = string.format('%.0f', n) end
  return ints[n]
end
local function stamp(ms)  -- seconds since 1970, as RQ writes them
  if not stamps[ms] then stamps[ms] = tostring(ms / 1000) end
  return stamps[ms]
end

-- RQ's time format, from civil-calendar arithmetic (Howard Hinnant, chrono-compatible date algorithms).
local now_iso
local function iso()
  if now_iso then return now_iso end
  local z = math.floor(now_s / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day, month = doy - math.floor((153 * mp + 2) / 5) + 1, mp < 10 and mp + 3 or mp - 9
  local year, s = yoe + era * 400 + (month <= 2 and 1 or 0), now_s % 86400
  now_iso = string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, day,
    math.floor(s / 3600), math.floor(s % 3600 / 60), s % 60, tonumber(T[2]))
  return now_iso
end

-- h.field for the fields that place, charge and end a job, or for those asked for (status and fence among them);
-- h.exists is false for a hash that is gone.
local FIELDS = {'status', 'fence', 'origin', 'tenant', 'model', 'batch_key', 'vd', 'cost', 'worker_name', 'hook',
  'crashes', 'result_ttl', 'failure_ttl', 'cancel', 'start_ms', 'expires_ms', 'lane', 'settled', 'gpu_ms', 'ended_ms',
  'postponed', 'progress', 'dependency_id', 'retries_left', 'repeats_left'}
local function load(id, fields)
  fields = fields or FIELDS
  local values = redis.call('HMGET', K.job .. id, unpack(fields))
  local h = {id = id}
  for i, name in ipairs(fields) do h[name] = values[i] or nil end
  h.exists, h.fence = h.status ~= nil, tonumber(h.fence or 0)
  return h
end

-- Changes of many jobs to one key go out as one command, in the order in which the first of each kind came.
local waiting, order = {}, {}
local function change_of(command, key)
  local name = command .. key
  local change = waiting[name]
  if not change then
    change = {command = command, key = key}
    waiting[name], order[#order + 1] = change, change
  end
  return change
end
local function later_all(command, key, parts)
  local change = change_of(command, key)
  for _, part in ipairs(parts) do change[#change + 1] = part end
end
local function later(command, key, part, other)
  local change = change_of(command, key)
  change[#change + 1] = part
  change[#change + 1] = other  -- of ZADD and HSET
end

-- As many commands as Lua's stack needs; PARTS is even, because members of ZADD and HSET come in pairs.
local PARTS = 1000
local function send(command, key, parts)
  if #parts == 0 then redis.call(command, key) end
  for first = 1, #parts, PARTS do
    redis.call(command, key, unpack(parts, first, math.min(first + PARTS - 1, #parts)))
  end
end

local function send_waiting()
  for _, change in ipairs(order) do send(change.command, change.key, change) end
  waiting, order = {}, {}
end

-- Reads a sorted set on, a chunk at a time, each twice as large as the one before: peek gives the entry at its place, as
-- member and score; nil at the end. Of most lanes a claim takes one job, of few all.
local function reader(key) return {key = key, chunk = 2, entries = {}, at = 0, size = 0} end
local function peek(r)
  if r.at == r.size and not r.is_at_end then
    local more = redis.call('ZRANGE', r.key, r.size, r.size + r.chunk - 1, 'WITHSCORES')
    for _, part in ipairs(more) do r.entries[#r.entries + 1] = part end
    r.size = r.size + #more / 2
    r.is_at_end = #more < 2 * r.chunk
    r.chunk = math.min(2 * r.chunk, 64)
  end
  return r.entries[2 * r.at + 1], tonumber(r.entries[2 * r.at + 2])
end
