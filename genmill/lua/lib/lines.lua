-- Ends of jobs that are lines of a batch, noted for its collector. A line's job is named by its batch and its number,
-- so that no other job costs a field or a command.

local ended_lines = {}
local function note_line(id)
  if string.sub(id, 1, 6) ~= 'batch_' then return end
  local batch, line = string.match(id, '^(batch_%w+)%-(%d+)$')
  if not batch then return end
  ended_lines[batch] = ended_lines[batch] or {}
  table.insert(ended_lines[batch], line)
end

local function flush_lines()
  for batch, lines in pairs(ended_lines) do
    local left_s = redis.call('TTL', K.batch .. batch)
    if left_s > 0 then
      send('SADD', K.batchended .. batch, lines)
      redis.call('EXPIRE', K.batchended .. batch, left_s)
    end
  end
  ended_lines = {}
end
