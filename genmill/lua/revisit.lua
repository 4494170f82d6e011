-- Looks again at jobs that wait for others: those whose turn has not come when one of them ended (one run of a script
-- moves only so many on), and now and then at all, lest one waits for what was deleted. Those that would end too many
-- at once stay due; the first never does. Two at once do no harm.
-- ARGV: most jobs a call
-- Returns the number of those that were looked at.
local due = redis.call('ZRANGEBYSCORE', K.chained, 0, now_ms, 'LIMIT', 0, tonumber(ARGV[1]))
for _, name in ipairs(due) do
  local tenant, id = string.match(name, '^(.*)/([^/]*)$')
  look_again(tenant, id)
end
flush()
return #due
