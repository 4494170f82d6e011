-- Notes how far running jobs are. ARGV: id, fence, progress (JSON) triples. Returns the number noted.
local noted = 0
for i = 1, #ARGV, 3 do
  local h = load(ARGV[i])
  if h.status == 'started' and h.fence == tonumber(ARGV[i + 1]) then
    redis.call('HSET', K.job .. ARGV[i], 'progress', ARGV[i + 2])
    noted = noted + 1
  end
end
return noted
