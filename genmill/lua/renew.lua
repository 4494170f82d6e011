-- Renews the leases of a worker's jobs and tells which it lost or must stop.
-- ARGV: lease ms, then id, fence pairs
-- Returns {{lost id, fence, ...}, {ids that a client canceled}}. What RQ itself ended is lost, and its slots freed.
local lost, canceled = {}, {}
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local h = load(id)
  if h.status ~= 'started' or h.fence ~= tonumber(ARGV[i + 1]) then
    if h.fence == tonumber(ARGV[i + 1]) and h.status ~= 'queued' then end_foreign(h) end
    lost[#lost + 1] = id
    lost[#lost + 1] = ARGV[i + 1]
  else
    redis.call('ZADD', K.run .. 'global', now_ms + tonumber(ARGV[1]), id)
    redis.call('HSET', K.job .. id, 'last_heartbeat', iso())
    redis.call('HSET', K.execution .. execution_of(h), 'last_heartbeat', stamp(now_ms))
    if h.cancel then canceled[#canceled + 1] = id end
  end
end
flush()
return {lost, canceled}
