-- Keeps places for longer, or takes them whatever the limit. ARGV: the time to live in ms, then the
-- holder for each key. Returns how many places are taken at each key.
local clock = redis.call('TIME')
local now_ms = math.floor(clock[1] * 1000 + clock[2] / 1000)
local taken = {}
for index, key in ipairs(KEYS) do
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
  redis.call('ZADD', key, string.format('%.0f', now_ms + ARGV[1]), ARGV[index + 1])
  redis.call('PEXPIRE', key, string.format('%.0f', ARGV[1] + 1))
  taken[index] = redis.call('ZCARD', key)
end
return taken
