-- Takes a waiting job out of its lane because RQ itself is about to write its end (cancel, delete).
-- ARGV: id. Returns 1 when it stood in a lane.
local h = load(ARGV[1])
if not h.exists or not is_queued(h) then return 0 end
dequeue(h)
flush()
return 1
