local time = redis.call('TIME')
-- Every script begins with this file. Then come those of the kinds of its budgets, and asks.lua. They decide asks for tokens by the
-- rules of package lease, where each function has a counterpart. Numbers are integers below 2^53; instants and durations are in µs.
--
-- KEYS: one for each part of each ask, in order, and one for the nonce if parts give tokens back.
-- ARGV[1]: doubles, and the holders of slots; see asks.lua.
-- Returns the instant of the decision, and a response to each part; see respond. If the call came too late, the instant alone.
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local pack, unpack, sub, call = struct.pack, struct.unpack, string.sub, redis.call
local EPOCH, LINGER, MOST, FORMAT, CALENDAR, YEAR = 10000000, 1000000, 2251799813685248, 1, 5, 31536000000000
local USED, WAITING = 5, 64 -- meter.MostUsed, mostWaiting

local now = time[1] * 1000000 + time[2]
local input = ARGV[1]
local notAfter, nonce, asks, pos = unpack('<ddd', input)
if notAfter > 0 and now > notAfter then return pack('<d', now) end
-- A client may repeat a script whose response was lost. Returns must count once.
local again = nonce > 0 and not call('SET', KEYS[#KEYS], '', 'NX', 'PX', 10000)
local kinds = {} -- by number: read(key, p) returns a state, write(key, s, p, tokens) a response. A state has wait, which is 0 if tokens
-- can be granted, can (how many) and there (how many without promises).
local inEpoch = now % EPOCH

-- The states of buckets and windows begin with these: the format as a byte, then as doubles
--   seen       the instant of the last ask
--   busy       the times since the asks before, summed up over this epoch of 10 s
--   before     the sum of the epoch before
--   hold       until when the budget is blocked
--   confirmed  when a process last asked by the rule that counts
--   tick, n, per, full  that rule; windows have n in per, with a tick of 1
-- Redis runs a script from its first line each time, so each function is made again in each run. Those that few runs need are made
-- where they are needed.

-- Adds an ask to the times, and changes the hold. A process that did not ask for an epoch counts as if it had been there all the time.
local function visit(p, seen, busy, before, hold)
  local began = now - inEpoch
  if seen < began then
    before = seen >= began - EPOCH and busy or 0
    busy = 0
  end
  if p.since >= EPOCH then
    busy, before = busy + inEpoch, before + EPOCH
  elseif p.since > inEpoch then
    busy, before = busy + inEpoch, before + p.since - inEpoch
  else
    busy = busy + p.since
  end
  if p.hold > 0 then hold = max(hold, now + p.hold) elseif p.hold < 0 then hold = 0 end
  return busy, before, hold
end

-- The stricter of two rules counts until no process has asked by it for an epoch. Govern returns whether that of p begins to count;
-- if it does not, p gets the one that counts. Tokens are promised as far ahead as by its own, but no more of them are granted together
-- than that rule allows.
local function govern(s, p)
  local b = p.budget
  if b.tick == s.tick and b.n == s.n and b.per == s.per and b.full == s.full then
    s.confirmed = now
    return false
  end
  local function isStricter(a, b)
    local x, y = a.n / (a.per * a.tick), b.n / (b.per * b.tick)
    if x ~= y then return x < y end
    if a.full > 0 then return a.full / a.per < b.full / b.per end
    return a.n < b.n
  end
  if p.replaces or now - s.confirmed > EPOCH or isStricter(b, s) then
    s.confirmed = now
    return true
  end
  p.differs, p.ticks = true, min(floor(p.ticks * b.tick / s.tick), floor(MOST / s.n))
  if p.due * s.per > s.full then p.ticks = 0 end
  p.budget = {
    tick = s.tick, n = s.n, per = s.per, full = s.full, owed = min(MOST, floor(b.owed / b.per) * s.per),
    horizon = min(MOST, floor(floor(b.horizon / b.n) * b.tick / s.tick) * s.n),
    kind = b.kind, initial = b.initial, origin = b.origin, windows = b.windows,
  }
  return false
end

-- Returns how much more a window may owe: it counts up to five times n as used.
local function mostDebt(s) return max(0, min(USED * s.n, 2 * MOST) - s.used) end

-- The queue of a budget has the asks that wait for its tokens: their places, how much they need, and until when. It is stored as
-- three pairs of doubles for each, whose first is negative, and whose second is the tag, or twice or four times the tag. The release before
-- keeps or drops such pairs. ReadLine returns it without the asks that did not come, and the rest of the text.
local function readLine(text, tag)
  local line, i = {}, 1
  while i + 47 <= #text do
    local place, a, tokens, b, last, c = unpack('<dddddd', text, i)
    if place >= 0 or a ~= tag or b ~= 2 * tag or c ~= 4 * tag then break end
    if now <= -last and -place <= now + LINGER then line[#line + 1] = { place = -place, tokens = -tokens, last = -last } end
    i = i + 48
  end
  while i < #text do -- what the release before has left of others
    local first, second = unpack('<dd', text, i)
    if first >= 0 or second > tag then break end
    i = i + 16
  end
  return line, sub(text, i)
end

-- Returns the text of a queue, and until when any of its asks has its place.
local function packLine(line, tag)
  local text, last = '', 0
  for i = 1, #line do
    local w = line[i]
    text, last = text .. pack('<dddddd', -w.place, tag, -w.tokens, 2 * tag, -w.last, 4 * tag), max(last, w.last)
  end
  return text, last
end

-- Returns how much an ask has to let others have whose turns come from one instant on, and before another one.
local function ahead(s, p, from, before)
  local tokens = 0
  for i = 1, #s.line do
    local w = s.line[i]
    local at = w.last - LINGER
    if (p.queued == 0 or w.place < p.queued) and from <= at and at < before then tokens = min(tokens + w.tokens, MOST) end
  end
  return tokens
end

-- Removes an ask from a queue.
local function leave(s, p)
  for i = 1, #s.line do
    if s.line[i].place == p.queued then return table.remove(s.line, i) end
  end
end

-- Returns how long to wait until the parts from one to another one may have what they need.
local function turnOf(states, first, last)
  local before, after = -1, 0
  while after > before do
    before = after
    for i = first, last do
      if states[i].turn then after = states[i].turn(after) end
    end
  end
  return after
end

-- Has an ask wait behind others. All parts have the place of the one that has waited longest. An ask comes again when all of them may have what
-- they need. If that is too late, it has no place. Asks for a budget do not wait for one that others delay for twice as long, except those that
-- come in the same fixed window. A place is kept for a second after the turn, and no longer than the request can use tokens.
local function enter(states, parts)
  local place, after, till = 0, now, 2 ^ 62
  for i = 1, #parts do
    local s, p = states[i], parts[i]
    if s.hold and s.hold > now then return end
    if s.turn then
      if p.queued > 0 and (place == 0 or p.queued < place) then place = p.queued end
      if #s.line > 0 then after = max(after, s.line[#s.line].place + 1) end
    end
  end
  for i = 1, #parts do
    local s, p = states[i], parts[i]
    if s.turn then
      if p.queued ~= place then leave(s, p) end
      p.queued = place
      p.turn, till = turnOf(states, i, i), min(till, p.ticks * s.tick)
    end
  end
  local latest = turnOf(states, 1, #parts)
  if latest > till then return end
  if place == 0 then place = after end
  for i = 1, #parts do
    local s, p = states[i], parts[i]
    if s.turn then p.place = place end
    local delayed = p.turn <= floor(latest / 2) -- by others
    if not delayed then p.turn = latest end
    if s.turn and (not delayed or s.ends) then
      local k = 1
      while k <= #s.line and s.line[k].place < place do k = k + 1 end
      local w = { place = place, tokens = p.need * (s.unit or 1), last = now + min(latest + LINGER, till) }
      if k <= #s.line and s.line[k].place == place then
        s.line[k] = w
      elseif #s.line < WAITING then
        table.insert(s.line, k, w)
      end
    end
  end
end

-- Returns how long it takes until a number of tokens of a window have come in, in whole periods.
local function come(s, tokens) return min(ceil(tokens / s.n) * s.per, YEAR) end

-- A response has these doubles: flags, processes, id, tokens, atOnce, left, and if one of them is not 0: next, until, wait, hold.
-- The flags are 1 if these follow, plus 2 if another rule counts, whose tick, n and per follow, plus 4 if slots are over, whose number
-- follows, plus 8 if the turn of an ask follows. Flags of -1 are followed by the length of an error and its text.
local function respond(p, s, id, tokens, atOnce, next, till, left)
  local flags, hold, wait = p.differs and 2 or 0, s.hold > now and s.hold - now or 0, s.wait
  local processes = s.holders or floor((floor(s.before * (EPOCH - inEpoch) / EPOCH) + s.busy + EPOCH / 2) / EPOCH)
  processes = max(1, processes)
  if p.place > 0 then id = p.place end -- nothing was granted
  local rule = p.differs and pack('<ddd', s.tick, s.n, s.per) or ''
  if p.over > 0 then flags, rule = flags + 4, rule .. pack('<d', p.over) end
  if p.turn > 0 then flags, rule = flags + 8, rule .. pack('<d', p.turn) end
  if next == 0 and till == 0 and wait == 0 and hold == 0 then return pack('<dddddd', flags, processes, id, tokens, atOnce, left) .. rule end
  return pack('<dddddddddd', flags + 1, processes, id, tokens, atOnce, left, next, till, wait, hold) .. rule
end
