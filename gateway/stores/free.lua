-- Gives places back. ARGV: the holder for each key.
for index, key in ipairs(KEYS) do
  redis.call('ZREM', key, ARGV[index])
end
return 0
