-- Counts an attempt at a delivery, and keeps the body of its first one: all attempts send the same bytes.
-- ARGV: id, fence, body ('' for none)
-- Returns {number of the attempt, url, tenant, body, number of the attempts before its schedule began anew}, or {} when the
-- lease was lost: nothing is to be sent, and nothing written, lest a hash without an end stays behind (the delivery was
-- deleted, or Redis lost its last second).
local id, fence, body = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local h = load(id)
if h.status ~= 'started' or h.fence ~= fence then return {} end
if body ~= '' then redis.call('HSETNX', K.job .. id, 'body', body) end
local number = redis.call('HINCRBY', K.job .. id, 'attempts', 1)
local kept = redis.call('HMGET', K.job .. id, 'url', 'owner', 'body', 'attempts_before')
return {number, kept[1] or '', kept[2] or 'default', kept[3] or '', tonumber(kept[4] or 0)}
