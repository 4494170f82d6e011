-- Takes a waiting job out of its lane because RQ itself writes its end: its cancel, or its delete.
-- ARGV: id. Returns 1 when it stood in a lane. In the transaction of RQ's cancel the job is canceled by now, and its
-- webhook is told; before a delete it is not.
local h = load(ARGV[1])
if not h.exists or not is_queued(h) then return 0 end
dequeue(h)
if h.status == 'canceled' then follow_cancel(h.id) end
flush()
return 1
