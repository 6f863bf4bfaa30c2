-- Fixed windows, also those of a calendar: the count of the window in which the last ask was.
-- The state after its head, as doubles:
--   used   the tokens of that window
--   at     when one was last used
--   ends   when it ends
--   waits  the tokens that asks wait for, if there are any or there is a debt; the release before drops what follows it
--   debt   what of used the next windows have to pay, if there is any; those of a calendar do not
local STATE, LENGTH = '<Bdddddddddddd', 97

local function windowOf(s, w, origin)
  local begins = 0
  if not w then
    begins = now - (now - origin) % s.per
    return begins, begins + s.per
  elseif now < w[1] then -- the clock of the process is more than a window ahead
    begins = now - (now - w[1]) % s.per
    return begins, min(begins + s.per, w[1])
  elseif now >= w[4] then -- behind
    begins = now - (now - w[4]) % s.per
    return begins, begins + s.per
  end
  local i = 2
  while now >= w[i] do i = i + 1 end
  return w[i - 1], w[i]
end

local function readFixed(key, p)
  local b, value = p.budget, call('GET', key)
  local format, seen, busy, before, hold, confirmed, tick, n, per, full = FORMAT, now, 0, 0, 0, now, b.tick, b.n, b.per, b.full
  local used, at, ended, waits, debt = 0, now, 0, 0, 0
  if value then
    format, seen, busy, before, hold, confirmed, tick, n, per, full, used, at, ended = unpack(STATE, value)
    if format ~= FORMAT then error({ key = key, format = format }) end
    if #value > LENGTH then waits = unpack('<d', value, LENGTH + 1) end
    if #value > LENGTH + 8 then debt = unpack('<d', value, LENGTH + 9) end
  end
  busy, before, hold = visit(p, seen, busy, before, hold)
  local s = {
    busy = busy, before = before, hold = hold, confirmed = confirmed, tick = tick, n = n, per = per, full = full,
    used = used, at = min(at, now), ends = ended, waits = waits, debt = debt, wait = 0, can = 0, there = 0, -- if the clock went back, no time has passed
  }
  if govern(s, p) then s.n, s.per = b.n, b.per end
  local begins, ends = windowOf(s, b.windows, b.origin)
  if b.windows and p.differs and now < s.ends then -- the window is that of the rule that counts
    begins, ends = s.at, s.ends
  end
  local came = s.n * max(1, floor((ends - ended) / s.per))
  if ends > ended then leave(s, came - s.used) end -- they did not come for their tokens
  s.ends = ends
  if s.at < begins then
    s.debt = max(0, debt - (came - s.n))
    s.used, s.at = s.debt, now
  end
  for i = 1, #p.back, 16 do
    local tokens, leased = unpack('<dd', p.back, i)
    if leased >= begins then s.used = max(0, s.used - tokens) end
  end
  local more = min(p.owe, mostDebt(s))
  if more > 0 then s.used, s.at = s.used + more, now end
  s.debt = b.windows and 0 or max(0, min(s.debt + more, s.used - s.n))
  s.wait = max(0, s.hold - now)
  if p.need > max(0, s.n - s.used) then s.wait = max(s.wait, s.ends - now + min(floor((s.debt + p.need - 1) / s.n) * s.per, YEAR)) end
  if p.queue and not b.windows then
    s.turn = function()
      local missing = ahead(s, p) + p.need - (s.n - s.used)
      return missing > 0 and min(floor((missing - 1) / s.n) * s.per, YEAR) + s.ends - now or 0
    end
  end
  s.can = s.n - s.used
  s.there = s.can
  return s
end

local function writeFixed(key, s, p, tokens)
  local id, till = 0, 0
  if tokens > 0 then
    s.used, s.at = s.used + tokens, now
    leave(s, tokens)
    id, till = now, s.ends - now
  end
  local state = pack(STATE, FORMAT, now, s.busy, s.before, s.hold, s.confirmed, s.tick, s.n, s.per, s.full, s.used, s.at, s.ends)
  if s.debt > 0 then state = state .. pack('<dd', s.waits, s.debt) elseif s.waits > 0 then state = state .. pack('<d', s.waits) end
  local last = s.ends + come(s, s.debt + s.waits)
  call('SET', key, state, 'PX', max(1, ceil((max(last, s.hold) + LINGER - now) / 1000)))
  return respond(p, s, id, tokens, tokens, 0, till, s.n - s.used)
end

kinds[3] = { read = readFixed, write = writeFixed }
kinds[CALENDAR] = kinds[3]
