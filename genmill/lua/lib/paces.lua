-- How long jobs take. For each model's batch key, sums over those that succeeded lately: jobs, cost, GPU ms, ms of their
-- runs; the least ms of a run for a unit of cost, and when that was.

local MEMORY = 0.98  -- what one more job leaves of the sums: about the last fifty count
local DRIFT = 0.01  -- by what the least grows in a minute, so that it follows a model that has become slower
local DOUBT = 0.98  -- what a refusal leaves of the least: who is refused teaches nothing, and must not be so for ever

-- The key without adapters: they change little in what a job takes, and there may be any number of sets of them.
local function family_of(bk) return string.match(bk, '^[^+]*') end

local paces, learnt = {}, {}
local function pace_of(bk)
  bk = family_of(bk)
  if paces[bk] == nil then
    local numbers = {}
    for number in string.gmatch(redis.call('HGET', K.pace, bk) or '', '%S+') do
      numbers[#numbers + 1] = tonumber(number)
    end
    paces[bk] = #numbers == 6 and {jobs = numbers[1], cost = numbers[2], gpu_ms = numbers[3], run_ms = numbers[4],
      least = numbers[5], at_s = numbers[6]} or false
  end
  return paces[bk]
end

local function least_now(p) return p.least * (1 + DRIFT) ^ ((now_s - p.at_s) / 60) end

local function learn(h, gpu_ms, run_ms)
  local p, cost = pace_of(h.batch_key), math.max(tonumber(h.cost or 1), 0.001)
  p = p or {jobs = 0, cost = 0, gpu_ms = 0, run_ms = 0, least = math.huge, at_s = now_s}
  p.jobs, p.cost = p.jobs * MEMORY + 1, p.cost * MEMORY + cost
  p.gpu_ms, p.run_ms = p.gpu_ms * MEMORY + gpu_ms, p.run_ms * MEMORY + run_ms
  p.least, p.at_s = math.min(least_now(p), run_ms / cost), now_s
  local bk = family_of(h.batch_key)
  paces[bk], learnt[bk] = p, true
end

local function flush_paces()
  for bk in pairs(learnt) do
    local p = paces[bk]
    redis.call('HSET', K.pace, bk, string.format('%.6g %.6g %.6g %.6g %.6g %.0f', p.jobs, p.cost, p.gpu_ms, p.run_ms,
      p.least, p.at_s))
    redis.call('EXPIRE', K.pace, 604800)
  end
  learnt = {}
end

-- What a job of this cost takes from start to end, as things go; nil where nothing is known.
local function usual_ms(bk, cost)
  local p = pace_of(bk)
  return p and p.run_ms / p.cost * cost or nil
end

-- When a job would end at the soonest, in ms from now: neither before the shortest run that was seen lately, nor before
-- the workers of its class have done half of what runs and all that waits with its virtual deadline or an earlier one.
-- nil where nothing is known.
local function soonest_ms(class, bk, cost, vd)
  local own, workers = pace_of(bk), redis.call('SCARD', K.workers .. ':' .. class)
  if not own or workers == 0 then return nil end
  local work_ms = own.gpu_ms / own.cost * cost + redis.call('SCARD', K.run .. 'all') / 2 * own.gpu_ms / own.jobs
  for _, other in ipairs({'p0', 'p1', 'p2', 'p3'}) do
    for _, key in ipairs(redis.call('ZRANGE', K.bkhead .. other, 0, -1)) do
      local p = pace_of(key)
      if p then work_ms = work_ms + redis.call('ZCOUNT', K.ready .. other .. ':' .. key, '-inf', vd) * p.gpu_ms / p.jobs end
    end
  end
  return math.max(least_now(own) * cost, work_ms / workers)
end

local function doubt(bk)
  local p = pace_of(bk)
  p.least, learnt[family_of(bk)] = p.least * DOUBT, true
end
