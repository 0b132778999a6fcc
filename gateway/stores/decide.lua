-- Decides on several requests, one after the other: all limits of a request together, or none.
-- KEYS: of each request first its rates, then its places, in the order of the arguments.
-- ARGV: for each request the number of charges, of places and the time to live in ms; then for each
--   charge cost, extra, burst (us) and 1 if it is enforced; for each place the limit, the holder
--   and 1 if it is enforced.
-- Returns whole numbers: for each request 1 if it is refused; for each charge over, used, extra;
--   for each place over, used. `routing/quota.py` says the same in Python.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now / 1000)
local key, word, answer = 0, 0, {}

local function argument()
  word = word + 1
  return ARGV[word]
end

local function number()
  return tonumber(argument())
end

local function say(value)
  answer[#answer + 1] = value
end

-- What a newer gateway may have written behind the number is left alone.
local function tat_of(key)
  local kept = redis.call('GET', key)
  return kept and tonumber(string.match(kept, '^%d+')) or now
end

local function whole(value)
  return string.format('%.0f', value)
end

while word < #ARGV do
  local charge_count, place_count, ttl_ms = number(), number(), number()
  local charges, places, refused = {}, {}, 0
  for index = 1, charge_count do
    key = key + 1
    local charge = {key = KEYS[key], cost = number(), extra = number(), burst = number()}
    local enforced = number()
    charge.used = math.min(math.max(tat_of(charge.key) - now, 0), charge.burst)
    charge.over = charge.cost > charge.burst - charge.used
    if charge.over and enforced == 1 then refused = 1 end
    charges[index] = charge
  end
  for index = 1, place_count do
    key = key + 1
    local place = {key = KEYS[key], most = number(), holder = argument()}
    local enforced = number()
    redis.call('ZREMRANGEBYSCORE', place.key, '-inf', now_ms)
    place.used = redis.call('ZCARD', place.key)
    place.over = place.used >= place.most
    if place.over and enforced == 1 then refused = 1 end
    places[index] = place
  end
  say(refused)
  for _, charge in ipairs(charges) do
    local extra = 0
    if refused == 0 and not charge.over then
      charge.used = charge.used + charge.cost
      extra = math.min(charge.extra, charge.burst - charge.used)
      extra = extra - extra % math.max(charge.cost, 1)  -- less would pay for no request
      charge.used = charge.used + extra
      if charge.cost + extra > 0 then
        local left_ms = math.ceil(charge.used / 1000) + 1
        redis.call('SET', charge.key, whole(now + charge.used), 'PX', whole(left_ms))
      end
    end
    say(charge.over and 1 or 0)
    say(charge.used)
    say(extra)
  end
  for _, place in ipairs(places) do
    if refused == 0 and not place.over then
      redis.call('ZADD', place.key, whole(now_ms + ttl_ms), place.holder)
      redis.call('PEXPIRE', place.key, whole(ttl_ms + 1))
      place.used = place.used + 1
    end
    say(place.over and 1 or 0)
    say(place.used)
  end
end
return answer
