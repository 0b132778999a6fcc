-- Takes back what was charged to rates, as far as it is not worked off. ARGV: the amounts in us.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
for index, key in ipairs(KEYS) do
  local tat = tonumber(string.match(redis.call('GET', key) or '', '^%d+'))
  if tat then
    local left = tat - tonumber(ARGV[index]) - now
    if left <= 0 then
      redis.call('DEL', key)
    else
      local left_ms = string.format('%.0f', math.ceil(left / 1000) + 1)
      redis.call('SET', key, string.format('%.0f', now + left), 'PX', left_ms)
    end
  end
end
return 0
