local time = redis.call('TIME')
-- Every script begins with this file. Then come those of the kinds of its budgets, and asks.lua. They decide asks for tokens by the
-- rules of package lease, where each function has a counterpart. Numbers are integers below 2^53; instants and durations are in µs.
--
-- KEYS: one for each part of each ask, in order, and one for the nonce if parts give tokens back.
-- ARGV[1]: doubles, and the holders of slots; see asks.lua.
-- Returns the instant of the decision, and a response to each part; see respond. Alone it says that the call came too late.
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local pack, unpack, sub, call = struct.pack, struct.unpack, string.sub, redis.call
local EPOCH, LINGER, MOST, FORMAT, CALENDAR = 10000000, 1000000, 2251799813685248, 1, 5

local now = time[1] * 1000000 + time[2]
local input = ARGV[1]
local notAfter, nonce, asks, pos = unpack('<ddd', input)
if notAfter > 0 and now > notAfter then return pack('<d', now) end
-- A client may repeat a script whose response was lost. Returns must count once.
local again = nonce > 0 and not call('SET', KEYS[#KEYS], '', 'NX', 'PX', 10000)
local kinds = {} -- by number: read(key, p) returns a state with wait and free; write(key, s, p, tokens) returns a response
local inEpoch = now % EPOCH

-- The states of buckets and windows begin with these: the format as a byte, then as doubles
--   seen       the instant of the last ask
--   busy       the times since the asks before, summed up over this epoch of 10 s
--   before     the sum of the epoch before
--   hold       until when the budget is blocked
--   confirmed  when a process last asked by the rule that counts
--   tick, n, per, full  that rule; windows have n in per, with a tick of 1
local HEAD, HEADED = '<Bddddddddd', 73

local function headOf(s)
  return pack(HEAD, FORMAT, now, s.busy, s.before, s.hold, s.confirmed, s.tick, s.n, s.per, s.full)
end

local function expect(format, key)
  if format ~= FORMAT then error('STATE the state at ' .. key .. ' has format ' .. format .. ', this release has ' .. FORMAT, 0) end
end

-- A table that is made with all of its fields costs half as much as one that gets them later.
local function readHead(value, key, p)
  local format, seen, busy, before, hold, confirmed, tick, n, per, full = FORMAT, now, 0, 0, 0, now, p.tick, p.n, p.per, p.full
  if value then
    format, seen, busy, before, hold, confirmed, tick, n, per, full = unpack(HEAD, value)
    if format ~= FORMAT then expect(format, key) end
  end
  return {
    seen = seen, busy = busy, before = before, hold = hold, confirmed = confirmed, tick = tick, n = n, per = per, full = full,
    wait = 0, free = 0, can = 0, at = 0, level = 0, seq = 0, filled = 0, peaks = '', used = 0, log = '', ends = 0,
  }
end

-- A process that did not ask for an epoch counts as if it had been there all the time.
local function visit(s, p)
  local began = now - inEpoch
  if s.seen < began then
    s.before = s.seen >= began - EPOCH and s.busy or 0
    s.busy = 0
  end
  if p.since >= EPOCH then
    s.busy, s.before = s.busy + inEpoch, s.before + EPOCH
  elseif p.since > inEpoch then
    s.busy, s.before = s.busy + inEpoch, s.before + p.since - inEpoch
  else
    s.busy = s.busy + p.since
  end
  if p.hold > 0 then s.hold = max(s.hold, now + p.hold) elseif p.hold < 0 then s.hold = 0 end
end

local function processes(s)
  return max(1, floor((floor(s.before * (EPOCH - inEpoch) / EPOCH) + s.busy + EPOCH / 2) / EPOCH))
end

local function isStricter(a, b)
  local x, y = a.n / (a.per * a.tick), b.n / (b.per * b.tick)
  if x ~= y then return x < y end
  if a.full > 0 then return a.full / a.per < b.full / b.per end
  return a.n < b.n
end

-- The stricter of two rules counts until no process has asked by it for an epoch. Govern returns whether that of p begins to count;
-- if it does not, p gets the one that counts, and no promises.
local function govern(s, p)
  if p.tick == s.tick and p.n == s.n and p.per == s.per and p.full == s.full then
    s.confirmed = now
  elseif p.replaces or now - s.confirmed > EPOCH or isStricter(p, s) then
    s.confirmed = now
    return true
  else
    p.owed = min(MOST, floor(p.owed / p.per) * s.per)
    p.differs, p.horizon, p.ticks, p.tick, p.n, p.per, p.full = true, 0, 0, s.tick, s.n, s.per, s.full
  end
  return false
end

local function save(key, value, expires)
  call('SET', key, value, 'PX', max(1, ceil((expires + LINGER - now) / 1000)))
end

-- A response has these doubles: flags, processes, id, tokens, atOnce, left, and if one of them is not 0: next, until, wait, hold.
-- The flags are 1 if these follow, plus 2 if another rule counts. Flags of -1 are followed by the length of an error and its text.
local function respond(p, s, id, tokens, atOnce, next, till, wait, left, count)
  local flags, hold = p.differs and 2 or 0, s.hold > now and s.hold - now or 0
  if next == 0 and till == 0 and wait == 0 and hold == 0 then return pack('<dddddd', flags, count, id, tokens, atOnce, left) end
  return pack('<dddddddddd', flags + 1, count, id, tokens, atOnce, left, next, till, wait, hold)
end
