local t = redis.call('TIME')
-- Decides asks for tokens of shared budgets by the rules of package lease. Each function here has a counterpart
-- there. All numbers are integers below 2^53; instants and durations are in microseconds.
--
-- KEYS: one for each part of each ask, in order, and one for the nonce if parts give something back.
-- ARGV[1]: not after, whether there is a nonce, the number of asks; for each ask its parts, as readPart reads them.
-- Returns now, and for each part the numbers of reply; now alone if it is too late. Packing a number takes as long as computing it.
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local pack, unpack, sub, call = struct.pack, struct.unpack, string.sub, redis.call
local EPOCH, LINGER, SPARE = 10000000, 1000000, 4000000
local MOST = 2251799813685248

local a = ARGV[1]
local now = t[1] * 1000000 + t[2]
local notAfter, nonce, asks, pos = unpack('<ddd', a)
if notAfter > 0 and now > notAfter then return pack('<d', now) end
-- A client may repeat a script whose response was lost. Returns must count once.
local again = nonce > 0 and not call('SET', KEYS[#KEYS], '', 'NX', 'PX', 10000)

-- On the path of most asks, x - x % 1 stands for floor, and comparisons for max and min: function calls cost more.
local kind, tick, n, per, full, initial, owed, origin, horizon
local parts, need, due, want, ahead, ticks, since, owe, pause, held
local rule -- tick, n, per and full, as states have them
local whole, past -- now in ticks, rounded down and up
local holder, back, extras = '', '', false -- extras: the part before had some
owe, pause, held = 0, 0, 0

local began = now - now % EPOCH -- of this epoch
local rest = began + EPOCH - now

local function visit(seen, busy, before, hold)
  if seen < began then
    before = seen >= began - EPOCH and busy or 0
    busy = 0
  end
  if pause > 0 then hold = max(hold, now + pause) elseif pause < 0 then hold = 0 end
  return busy + since, before, hold
end

local function processes(busy, before)
  local sum = busy + EPOCH / 2
  if before > 0 then sum = sum + floor(before * rest / EPOCH) end
  sum = (sum - sum % EPOCH) / EPOCH
  return sum < 1 and 1 or sum
end

local function save(key, value, expires)
  call('SET', key, value, 'PX', max(1, ceil((expires + LINGER - now) / 1000)))
end

-- reply returns twice the number of processes, plus one if four numbers that are mostly 0 follow at the end.
local function reply(id, tokens, atOnce, next, till, wait, left, hold, processes)
  hold = hold > now and hold - now or 0
  if next == 0 and till == 0 and wait == 0 and hold == 0 then return pack('<ddddd', 2 * processes, id, tokens, atOnce, left) end
  return pack('<ddddddddd', 2 * processes + 1, id, tokens, atOnce, left, next, till, wait, hold)
end

-- Token buckets.

local function rescale(level, from, to)
  local whole = floor(level / from)
  local part = (level - whole * from) * to / from
  local most = floor(MOST / to)
  return max(-most, min(whole, most)) * to + floor(part * (1 - 2 ^ -50))
end

local function giveBack(level, full, per, filled, peaks, leased, tokens)
  if filled > leased then return level, peaks end
  local i, room = 1, full - level
  while i < #peaks do
    local seq, r = unpack('<dd', peaks, i)
    if seq > leased then
      room = min(room, r)
      break
    end
    i = i + 16
  end
  local units = min(tokens * per, room)
  if units <= 0 then return level, peaks end
  if i < #peaks then
    local head, tail, least = sub(peaks, 1, i - 1), '', nil
    for j = i, #peaks, 16 do
      local seq, r = unpack('<dd', peaks, j)
      least = least or r - units
      tail = tail .. pack('<dd', seq, r - units)
    end
    while #head > 0 do
      local _, r = unpack('<dd', head, #head - 15)
      if r < least then break end
      head = sub(head, 1, #head - 16)
    end
    peaks = head .. tail
  end
  return level + units, peaks
end

local function thin(peaks)
  local kept, room = unpack('<dd', peaks)
  local _, last = unpack('<dd', peaks, #peaks - 15)
  local apart, thinned = ceil((last - room) / 4), ''
  for i = 17, #peaks, 16 do
    local s, r = unpack('<dd', peaks, i)
    if r - room >= apart then
      thinned = thinned .. pack('<dd', kept, room)
      room = r
    end
    kept = s
  end
  return thinned .. pack('<dd', kept, room)
end

local function remember(level, seq, filled, peaks)
  seq = seq + 1
  if level >= full then return seq, seq, '' end
  local room = full - level
  while #peaks > 0 do
    local _, r = unpack('<dd', peaks, #peaks - 15)
    if r < room then break end
    peaks = sub(peaks, 1, #peaks - 16)
  end
  peaks = peaks .. pack('<dd', seq, room)
  if #peaks >= 128 then peaks = thin(peaks) end
  return seq, filled, peaks
end

local function readBucket(key)
  local s = call('GET', key)
  local busy, before, hold, till, at, level, seq, filled, peaks
  local seen, tick0, n0, per0, full0 = now, tick, n, per, full
  local whole, past = whole, past
  if s then
    seen, busy, before, hold, till, at, level, seq, filled, tick0, n0, per0, full0 = unpack('<ddddddddddddd', s)
    peaks = sub(s, 105)
    if seen < began or pause ~= 0 then
      busy, before, hold = visit(seen, busy, before, hold)
    else
      busy = busy + since
    end
    if tick0 ~= tick then whole, past = floor(now / tick0), ceil(now / tick0) end
    if past < at then at = past end
    if whole > at then
      local came = (whole - at) * n0
      if came < full0 - level then
        level = level + came
        at = whole
      else
        if level < full0 then level = full0 end
        at = past
      end
    end
  else
    busy, before, hold = visit(now, 0, 0, 0)
    till, at, level, seq, filled, peaks = 0, past, initial, now, now, ''
  end
  for i = 1, #back, 16 do
    local tokens, leased = unpack('<dd', back, i)
    level, peaks = giveBack(level, full0, per0, filled, peaks, leased, tokens)
  end
  if tick0 ~= tick or n0 ~= n or per0 ~= per or full0 ~= full then
    level = rescale(level, per0, per)
    past = ceil(now / tick)
    if tick0 ~= tick then at = past end
    filled, peaks = seq + 1, ''
  end
  if level >= full then
    level, at = full, past
  end
  if owe > 0 then
    seq, filled, peaks = remember(level, seq, filled, peaks)
    level = max(min(level, -owed), level - owe * per)
  end
  local wait = hold > now and hold - now or 0
  local missing = due * per - level
  if need > 0 and missing > 0 then wait = max(wait, (ceil(missing / n) - ticks) * tick) end
  return wait, busy, before, hold, till, at, level, seq, filled, peaks
end

local function mostOfBucket(level)
  local room
  if level >= 0 then
    room = level + (horizon - horizon % 2) / 2
  else
    room = max(0, floor((horizon + level) / 2))
  end
  room = (room - room % per) / per
  if room > want then room = want end
  return room < need and need or room
end

local function aheadOfBucket(level, tokens)
  level = level - tokens * per
  if level <= 0 then return 0 end
  return (level - level % (4 * per)) / (4 * per)
end

-- Most states expire later than they must, so that not every change sets another time: that takes longer than all the rest.
local function writeBucket(key, tokens, wait, busy, before, hold, till, at, level, seq, filled, peaks)
  local id, atOnce, next = 0, 0, 0
  if tokens > 0 then
    if level > 0 then atOnce = (level - level % per) / per end
    if atOnce < tokens then
      next = max(0, (at + ceil(((atOnce + 1) * per - level) / n)) * tick - now)
    else
      atOnce = tokens
    end
    if level >= full then
      seq = seq + 1
      filled, peaks = seq, ''
    else
      seq, filled, peaks = remember(level, seq, filled, peaks)
    end
    id = seq
    level = level - tokens * per
  end
  local expires = at
  if level < full then
    local missing = full - level + n - 1
    expires = at + (missing - missing % n) / n
  end
  expires = expires * tick
  if expires < hold then expires = hold end
  expires = expires + LINGER
  local keep = till >= expires
  if not keep then till = expires + SPARE end
  local value = pack('<ddddddddd', now, busy, before, hold, till, at, level, seq, filled) .. rule .. peaks
  if keep then
    call('SET', key, value, 'KEEPTTL')
  else
    call('SET', key, value, 'PX', ceil((till - now) / 1000))
  end
  return reply(id, tokens, atOnce, next, 0, wait, level / per, hold, processes(busy, before))
end

-- Sliding windows.

local function joined(log)
  local slot, out = max(1, floor(per / 64)), ''
  local at, count = unpack('<dd', log)
  for i = 17, #log, 16 do
    local next, c = unpack('<dd', log, i)
    if floor(next / slot) == floor(at / slot) then
      count = count + c
    else
      out = out .. pack('<dd', at, count)
      count = c
    end
    at = next
  end
  return out .. pack('<dd', at, count)
end

local function addToLog(s, tokens)
  s.used = s.used + tokens
  if #s.log > 0 then
    local at, count = unpack('<dd', s.log, #s.log - 15)
    if at == now then
      s.log = sub(s.log, 1, #s.log - 16) .. pack('<dd', at, count + tokens)
      return
    end
  end
  s.log = s.log .. pack('<dd', now, tokens)
  if #s.log >= 2048 then s.log = joined(s.log) end
end

local function backToLog(s, leased, tokens)
  if leased + per <= now then return end
  for i = 1, #s.log, 16 do
    local at, count = unpack('<dd', s.log, i)
    if at >= leased then
      tokens = min(tokens, count)
      s.used = s.used - tokens
      s.log = sub(s.log, 1, i - 1) .. pack('<dd', at, count - tokens) .. sub(s.log, i + 16)
      return
    end
  end
end

local function untilTokens(s, missing)
  if missing <= 0 then return 0 end
  for i = 1, #s.log, 16 do
    local at, count = unpack('<dd', s.log, i)
    missing = missing - count
    if missing <= 0 then return at + per - now end
  end
  return per
end

local function readSliding(key)
  local s, value, seen = { log = '', used = 0 }, call('GET', key), now
  s.busy, s.before, s.hold = 0, 0, 0
  if value then
    seen, s.busy, s.before, s.hold, s.used = unpack('<ddddd', value)
    s.log = sub(value, 41)
  end
  if now < seen then -- the clock went back
    local log = ''
    for i = 1, #s.log, 16 do
      local at, count = unpack('<dd', s.log, i)
      log = log .. pack('<dd', at - (seen - now), count)
    end
    s.log = log
  end
  s.busy, s.before, s.hold = visit(seen, s.busy, s.before, s.hold)
  local live = 1
  while live < #s.log do
    local at, count = unpack('<dd', s.log, live)
    if at + per > now then break end
    s.used = s.used - count
    live = live + 16
  end
  s.log = sub(s.log, live)
  for i = 1, #back, 16 do
    local tokens, leased = unpack('<dd', back, i)
    backToLog(s, leased, tokens)
  end
  local more = min(owe, 2 * n - s.used)
  if more > 0 then addToLog(s, more) end

  s.wait = max(0, s.hold - now)
  if need > 0 then s.wait = max(s.wait, untilTokens(s, need - (n - s.used))) end
  return s
end

local function writeSliding(key, s, tokens)
  if tokens > 0 then addToLog(s, tokens) end
  local last = now
  if #s.log > 0 then last = unpack('<d', s.log, #s.log - 15) + per end
  save(key, pack('<ddddd', now, s.busy, s.before, s.hold, s.used) .. s.log, max(last, s.hold))
  local id, till = 0, 0
  if tokens > 0 then id, till = now, per end
  if s.wait == 0 then s.wait = untilTokens(s, 1 - (n - s.used)) end
  return reply(id, tokens, tokens, 0, till, s.wait, n - s.used, s.hold, processes(s.busy, s.before))
end

-- Fixed windows.

local function readFixed(key)
  local s, value, seen = { used = 0, at = now }, call('GET', key), now
  s.busy, s.before, s.hold = 0, 0, 0
  if value then seen, s.busy, s.before, s.hold, s.used, s.at = unpack('<dddddd', value) end
  s.busy, s.before, s.hold = visit(seen, s.busy, s.before, s.hold)
  s.at = min(s.at, now) -- the clock went back
  local begins = now - (now - origin) % per
  s.ends = begins + per
  if s.at < begins then s.used, s.at = 0, now end
  for i = 1, #back, 16 do
    local tokens, leased = unpack('<dd', back, i)
    if leased >= begins then s.used = max(0, s.used - tokens) end
  end
  local more = min(owe, 2 * n - s.used)
  if more > 0 then s.used, s.at = s.used + more, now end
  s.wait = max(0, s.hold - now)
  if need > max(0, n - s.used) then s.wait = max(s.wait, s.ends - now) end
  return s
end

local function writeFixed(key, s, tokens)
  local id, till = 0, 0
  if tokens > 0 then
    s.used, s.at = s.used + tokens, now
    id, till = now, s.ends - now
  end
  save(key, pack('<dddddd', now, s.busy, s.before, s.hold, s.used, s.at), max(s.ends, s.hold))
  return reply(id, tokens, tokens, 0, till, s.wait, n - s.used, s.hold, processes(s.busy, s.before))
end

-- Slots.

local function readSlots(key)
  local s, value = { hold = 0, used = 0, wanted = 0, holders = 0, others = '', last = 0 }, call('GET', key)
  local had = 0
  if value then
    local p
    s.hold, p = unpack('<d', value)
    while p <= #value do
      local name, count, wants, till, next = unpack('<Bc0ddd', value, p)
      if till > now and name == holder then
        had = count
      elseif till > now then
        s.used, s.wanted, s.holders, s.last = s.used + count, s.wanted + wants, s.holders + 1, max(s.last, till)
        s.others = s.others .. sub(value, p, next - 1)
      end
      p = next
    end
  end
  if pause > 0 then s.hold = max(s.hold, now + pause) elseif pause < 0 then s.hold = 0 end
  if held > 0 or want > 0 then s.holders = s.holders + 1 end
  s.free = max(0, n - s.used - held)
  if held < had and s.wanted > 0 then s.free = 0 end
  s.wait = max(0, s.hold - now)
  if need > s.free then s.wait = max(s.wait, min(100, s.holders) * 10000) end
  return s
end

local function writeSlots(key, s, tokens)
  local mine, till = '', now + 10000000
  if held > 0 or want > 0 or tokens > 0 then
    mine = pack('<Bc0ddd', #holder, holder, held + tokens, max(0, want - tokens), till)
    s.last = max(s.last, till)
    if held == 0 and want == 0 then s.holders = s.holders + 1 end
  end
  save(key, pack('<d', s.hold) .. s.others .. mine, max(s.hold, s.last))
  local id, expires = 0, 0
  if tokens > 0 then id, expires = now, 10000000 end
  local left = n - s.used - s.wanted - held - tokens
  return reply(id, tokens, tokens, 0, expires, s.wait, left, s.hold, max(1, s.holders))
end

-- Asks.

local function readPart()
  local what, names, backs
  parts, what, need, due, want, ahead, ticks, since, pos = unpack('<dddddddd', a, pos)
  if what % 2 == 1 then -- else the budget has the numbers of the one before
    kind, tick, n, per, full, initial, owed, origin, horizon, pos = unpack('<ddddddddd', a, pos)
    rule = pack('<dddd', tick, n, per, full)
    if kind == 1 then
      local part = now % tick
      whole = (now - part) / tick
      past = part == 0 and whole or whole + 1
    end
  end
  if what < 2 then
    if extras then
      owe, pause, held, holder, back, extras = 0, 0, 0, '', '', false
    end
    return
  end
  extras = true
  owe, pause, held, names, backs, pos = unpack('<ddddd', a, pos)
  holder = sub(a, pos, pos + names - 1)
  pos = pos + names
  back = ''
  if backs > 0 then
    if not again then back = sub(a, pos, pos + backs * 16 - 1) end
    pos = pos + backs * 16
  end
end

local function read(key)
  if kind == 1 then
    local s = {}
    s.wait, s.busy, s.before, s.hold, s.till, s.at, s.level, s.seq, s.filled, s.peaks = readBucket(key)
    s.can = mostOfBucket(s.level)
    return s
  end
  local s
  if kind == 2 then s = readSliding(key) elseif kind == 3 then s = readFixed(key) else s = readSlots(key) end
  s.free = s.free or n - s.used
  s.can = max(need, min(want, s.free))
  return s
end

local function plenty(s)
  if kind == 1 then return aheadOfBucket(s.level, want) end
  return max(0, floor((s.free - want) / 4))
end

local function write(key, s, tokens)
  if kind == 1 then
    return writeBucket(key, tokens, s.wait, s.busy, s.before, s.hold, s.till, s.at, s.level, s.seq, s.filled, s.peaks)
  elseif kind == 2 then
    return writeSliding(key, s, tokens)
  elseif kind == 3 then
    return writeFixed(key, s, tokens)
  end
  return writeSlots(key, s, tokens)
end

local out, written, k = { pack('<d', now) }, 1, 0
for _ = 1, asks do
  local start, key, count = pos, KEYS[k + 1], nil
  readPart()
  count = parts
  if count == 1 and kind == 1 then -- the common case, without a table
    local wait, busy, before, hold, till, at, level, seq, filled, peaks = readBucket(key)
    local tokens = 0
    if wait == 0 then
      tokens = mostOfBucket(level)
      if tokens == want and ahead > 0 then tokens = want + min(ahead, aheadOfBucket(level, want)) end
    end
    written = written + 1
    out[written] = writeBucket(key, tokens, wait, busy, before, hold, till, at, level, seq, filled, peaks)
  else
    local states, refused, some, wanted, least = {}, false, nil, nil, nil
    pos = start
    for i = 1, count do
      readPart()
      local s = read(KEYS[k + i])
      states[i] = s
      refused = refused or s.wait > 0
      if not least or s.can * wanted < some * want then some, wanted, least = s.can, want, i end
    end
    pos = start
    for i = 1, count do
      readPart()
      local s, tokens = states[i], 0
      if not refused then
        tokens = s.can
        if some == wanted then
          tokens = want + min(ahead, plenty(s))
        elseif i ~= least then
          tokens = min(s.can, max(need, floor(want * some / wanted)))
        end
      end
      written = written + 1
      out[written] = write(KEYS[k + i], s, tokens)
    end
  end
  k = k + count
end
return table.concat(out)
