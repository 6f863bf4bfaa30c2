-- Token buckets and paces: levels are in 1/per of a token, and n of these units come in with each tick.
-- The state after its head, as doubles:
--   at         the level is as of this tick
--   level      negative while tokens are promised or owed
--   seq        the number of the last lease
--   filled     that of the first lease after the bucket was full
--   seq, room  of each peak: how much was missing to full before a lease, if more has been missing ever since; at most 7
local function rescale(level, from, to)
  local whole = floor(level / from)
  local part = (level - whole * from) * to / from
  local most = floor(MOST / to)
  return max(-most, min(whole, most)) * to + floor(part * (1 - 2 ^ -50))
end

-- Tokens that a full bucket would have lost without their lease are not given back.
local function giveBack(s, leased, tokens)
  local units, peaks = min(tokens * s.per, s.full - s.level), ''
  if s.filled > leased or units <= 0 then return end
  for i = 1, #s.peaks, 16 do
    local seq, room = unpack('<dd', s.peaks, i)
    if seq > leased then units = min(units, room) end
  end
  for i = 1, #s.peaks, 16 do
    local seq, room = unpack('<dd', s.peaks, i)
    peaks = peaks .. pack('<dd', seq, seq > leased and room - units or room)
  end
  s.level, s.peaks = s.level + units, peaks
end

local function remember(s)
  s.seq = s.seq + 1
  if s.level >= s.full then
    s.filled, s.peaks = s.seq, ''
    return
  end
  local room, peaks = s.full - s.level, s.peaks
  while #peaks > 0 and unpack('<d', peaks, #peaks - 7) >= room do peaks = sub(peaks, 1, -17) end
  peaks = peaks .. pack('<dd', s.seq, room)
  if #peaks > 112 then -- the two that are closest become one
    local closest, at
    for i = 1, #peaks - 31, 16 do
      local _, before, _, after = unpack('<dddd', peaks, i)
      if i == 1 or after - before < closest then closest, at = after - before, i end
    end
    local _, before, later, after = unpack('<dddd', peaks, at)
    peaks = sub(peaks, 1, at - 1) .. pack('<dd', later, min(before, after)) .. sub(peaks, at + 32)
  end
  s.peaks = peaks
end

local function flow(s)
  local past = ceil(now / s.tick)
  if past < s.at then s.at = past end -- the clock went back
  local ticks = floor(now / s.tick)
  if ticks <= s.at then return end
  local came = (ticks - s.at) * s.n
  if came < s.full - s.level then
    s.level, s.at = s.level + came, ticks
  else
    s.level, s.at = max(s.level, s.full), past
  end
end

local function readBucket(key, p)
  local value = call('GET', key)
  local s = readHead(value, key, p)
  if value then
    s.at, s.level, s.seq, s.filled = unpack('<dddd', value, HEADED + 1)
    s.peaks = sub(value, HEADED + 33)
  else
    s.at, s.level, s.seq, s.filled, s.peaks = ceil(now / s.tick), p.initial, now, now, ''
  end
  visit(s, p)
  flow(s)
  for i = 1, #p.back, 16 do
    local tokens, leased = unpack('<dd', p.back, i)
    giveBack(s, leased, tokens)
  end
  if govern(s, p) then
    s.level = rescale(s.level, s.per, p.per)
    if s.tick ~= p.tick then s.at = ceil(now / p.tick) end
    s.tick, s.n, s.per, s.full = p.tick, p.n, p.per, p.full
    s.filled, s.peaks = s.seq + 1, ''
  end
  if s.level >= s.full then s.level, s.at = s.full, ceil(now / s.tick) end
  if p.owe > 0 then
    remember(s)
    s.level = max(min(s.level, -p.owed), s.level - p.owe * s.per)
  end
  s.wait = max(0, s.hold - now)
  local missing = p.due * s.per - s.level
  if p.need > 0 and missing > 0 then s.wait = max(s.wait, (ceil(missing / s.n) - p.ticks) * s.tick) end
  if s.level >= 0 then
    s.free = floor((s.level + floor(p.horizon / 2)) / s.per)
  else
    s.free = floor(max(0, floor((p.horizon + s.level) / 2)) / s.per)
  end
  return s
end

local function aheadOfBucket(s, p)
  return max(0, floor((s.level - p.want * s.per) / (4 * s.per)))
end

local function writeBucket(key, s, p, tokens)
  local id, atOnce, next = 0, 0, 0
  if tokens > 0 then
    atOnce = min(tokens, floor(max(0, s.level) / s.per))
    if atOnce < tokens then next = max(0, (s.at + ceil(((atOnce + 1) * s.per - s.level) / s.n)) * s.tick - now) end
    remember(s)
    id = s.seq
    s.level = s.level - tokens * s.per
  end
  local full = s.at
  if s.level < s.full then full = full + ceil((s.full - s.level) / s.n) end
  save(key, headOf(s) .. pack('<dddd', s.at, s.level, s.seq, s.filled) .. s.peaks, max(full * s.tick, s.hold))
  return respond(p, s, id, tokens, atOnce, next, 0, s.wait, s.level / s.per, processes(s))
end

kinds[1] = { read = readBucket, ahead = aheadOfBucket, write = writeBucket }
