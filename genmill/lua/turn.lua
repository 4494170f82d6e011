-- A worker's turn: commits what has ended, then claims a batch.
-- ARGV: number of values that tell what has ended, those (see lib/settling.lua), what the claim needs (see
--       lib/claiming.lua)
-- Returns {verdicts, batch}.
local told = tonumber(ARGV[1])
return {settle_all(ARGV, 2, told + 1), claim_batch(ARGV, told + 2)}
