-- Token buckets and paces: levels are in 1/per of a token, and n of these units come in with each tick.
-- The state after its head, as doubles:
--   at         the level is as of this tick
--   level      negative while tokens are promised or owed
--   seq        the last lease: when it was, or one more than the one before
--   filled     that of the first lease after the bucket was full
--   seq, room  of each peak: how much was missing to full before a lease, if more has been missing ever since; at most 15
-- While debts have not come in, the first peak is none: its room is DEBT, and its seq minus what is owed. The release before, which
-- does not know it, keeps such a peak, because no other one has less room, and takes no lease to be older.
-- The queue comes before all peaks, with the tag QUEUE, and counts units.
local STATE, LENGTH, DEBT, QUEUE = '<Bddddddddddddd', 105, -2 ^ 60, -2 ^ 61

local function remember(s, least)
  s.seq = max(s.seq + 1, now)
  if s.level >= s.full then
    s.filled, s.peaks = s.seq, ''
    return
  end
  local room, peaks = s.full - max(s.level, min(least, s.full)), s.peaks
  while #peaks > 0 and unpack('<d', peaks, #peaks - 7) >= room do peaks = sub(peaks, 1, -17) end
  peaks = peaks .. pack('<dd', s.seq, room)
  if #peaks > 240 then -- the two that are closest become one
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

-- when returns when the level is reached, or seq if that is later or nothing is promised.
local function when(s, level)
  if s.level >= 0 then return s.seq end
  return max(s.seq, (s.at + ceil((level - s.level) / s.n)) * s.tick)
end

local function readBucket(key, p)
  local b, value = p.budget, call('GET', key)
  local format, seen, busy, before, hold, confirmed, tick, n, per, full = FORMAT, now, 0, 0, 0, now, b.tick, b.n, b.per, b.full
  local at, level, seq, filled, peaks, debt, line = ceil(now / tick), b.initial, now, now, '', 0, {}
  if value then
    format, seen, busy, before, hold, confirmed, tick, n, per, full, at, level, seq, filled = unpack(STATE, value)
    if format ~= FORMAT then error({ key = key, format = format }) end
    line, peaks = readLine(sub(value, LENGTH + 1), QUEUE)
    if #peaks > 0 then
      local owed, room = unpack('<dd', peaks)
      if room == DEBT then peaks, debt = sub(peaks, 17), -owed end
    end
  end
  local past, ticks = ceil(now / tick), floor(now / tick)
  local held = min(ticks, floor(hold / tick)) - at
  if held > 0 then -- it was blocked, and has no more than it had or one token afterwards
    local came = min(held * n, max(0, per - level))
    level, debt, at = level + came, max(0, debt - came), at + held
  end
  busy, before, hold = visit(p, seen, busy, before, hold)
  if past < at then at = past end -- the clock went back
  if ticks > at then
    local came = (ticks - at) * n
    if came < full - level then
      level, at, debt = level + came, ticks, max(0, debt - came)
    else
      level, at = max(level, full), past
    end
  end
  local s = {
    busy = busy, before = before, hold = hold, confirmed = confirmed, tick = tick, n = n, per = per, full = full,
    at = at, level = level, seq = seq, filled = filled, peaks = peaks, debt = debt, line = line, wait = 0, can = 0, there = 0,
  }
  if p.back ~= '' then
    -- Tokens that a full bucket would have lost without their lease are not given back.
    local function giveBack(leased, tokens)
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
    for i = 1, #p.back, 16 do
      local tokens, leased = unpack('<dd', p.back, i)
      giveBack(leased, tokens)
    end
    if hold > now then s.level = min(s.level, max(level, per)) end
  end
  if govern(s, p) then
    local function rescale(level, from, to)
      local whole = floor(level / from)
      local part = (level - whole * from) * to / from
      local most = floor(MOST / to)
      return max(-most, min(whole, most)) * to + floor(part * (1 - 2 ^ -50))
    end
    s.seq = when(s, 0)
    s.level, s.debt = rescale(s.level, s.per, b.per), rescale(s.debt, s.per, b.per)
    if s.tick ~= b.tick then s.at = ceil(now / b.tick) end
    s.tick, s.n, s.per, s.full = b.tick, b.n, b.per, b.full
    s.filled, s.peaks, s.line = s.seq + 1, '', {}
  end
  b = p.budget -- which is that of another process if its rule counts
  if s.level >= s.full then s.level, s.at, s.debt = s.full, ceil(now / s.tick), 0 end
  if p.owe > 0 then
    remember(s, -s.debt)
    local there = min(p.owe * s.per, max(0, s.level))
    local more = min(p.owe * s.per - there, max(0, b.owed - s.debt))
    s.debt = s.debt + more
    s.level = s.level - there - more
  end
  s.wait = max(0, s.hold - now)
  local missing, reach = p.due * s.per - s.level, p.ticks
  if p.queue then reach = p.queued == 0 and #s.line > 0 and 0 or floor(b.horizon / b.n) end -- not before others that have places
  if p.need > 0 and missing > 0 then s.wait = max(s.wait, (ceil(missing / s.n) - reach) * s.tick) end
  if p.queue then
    s.unit = s.per
    s.turn = function(after)
      local missing = max(0, ahead(s, p, 0, 2 ^ 62) + p.due * s.per - s.level)
      return max(after, min(max(0, ceil(missing / s.n) - floor(floor(b.horizon / b.n) / 2)) * s.tick, YEAR))
    end
  end
  s.there = floor(s.level / s.per)
  if s.level >= 0 then
    s.can = floor((s.level + floor(b.horizon / 2)) / s.per)
  else
    s.can = floor(max(0, floor((b.horizon + s.level) / 2)) / s.per)
  end
  return s
end

local function writeBucket(key, s, p, tokens)
  local id, atOnce, next = 0, 0, 0
  if tokens > 0 then
    atOnce = max(0, min(tokens, s.there))
    if atOnce < tokens then next = max(0, (s.at + ceil(((atOnce + 1) * s.per - s.level) / s.n)) * s.tick - now) end
    remember(s, p.due * s.per)
    s.level = s.level - tokens * s.per
    leave(s, p)
    id = when(s, min(p.due * s.per, floor(p.budget.horizon / 2)))
  end
  local full = max(s.at, ceil(s.hold / s.tick))
  if s.level < s.full then full = full + ceil((s.full - s.level) / s.n) end
  local state = pack(STATE, FORMAT, now, s.busy, s.before, s.hold, s.confirmed, s.tick, s.n, s.per, s.full, s.at, s.level, s.seq, s.filled)
  local line, last = packLine(s.line, QUEUE)
  state = state .. line
  if s.debt > 0 then state = state .. pack('<dd', -s.debt, DEBT) end
  call('SET', key, state .. s.peaks, 'PX', max(1, ceil((max(full * s.tick, s.hold, last) + LINGER - now) / 1000)))
  return respond(p, s, id, tokens, atOnce, next, 0, s.level / s.per)
end

kinds[1] = { read = readBucket, write = writeBucket }
