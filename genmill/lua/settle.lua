-- Ends and gives back running jobs; see lib/settling.lua.
-- ARGV: for each job its SETTLE_ARGS values
return settle_all(ARGV, 1, #ARGV)
