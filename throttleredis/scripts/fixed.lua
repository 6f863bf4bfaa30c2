-- Fixed windows, also those of a calendar: the count of the window in which the last ask was.
-- The state after its head, as doubles:
--   used   the tokens of that window
--   at     when one was last used
--   ends   when it ends
--   debt   what of used the next windows have to pay, if there is any or a queue follows; those of a calendar do not. The release before
--          drops it, and the queue
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
  local used, at, ended, debt, line = 0, now, 0, 0, {}
  if value then
    format, seen, busy, before, hold, confirmed, tick, n, per, full, used, at, ended = unpack(STATE, value)
    if format ~= FORMAT then error({ key = key, format = format }) end
    if #value > LENGTH then debt, line = unpack('<d', value, LENGTH + 1), readLine(sub(value, LENGTH + 9), 0) end
  end
  busy, before, hold = visit(p, seen, busy, before, hold)
  local s = {
    busy = busy, before = before, hold = hold, confirmed = confirmed, tick = tick, n = n, per = per, full = full,
    used = used, at = min(at, now), ends = ended, line = line, debt = debt, wait = 0, can = 0, there = 0, -- if the clock went back, no time has passed
  }
  if govern(s, p) then s.n, s.per = b.n, b.per end
  local begins, ends = windowOf(s, b.windows, b.origin)
  if b.windows and p.differs and now < s.ends then -- the window is that of the rule that counts
    begins, ends = s.at, s.ends
  end
  local came = s.n * max(1, floor((ends - ended) / s.per))
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
    s.turn = function(after)
      local windows = max(0, floor((now + after - s.ends) / s.per) + 1) -- that begin until then
      local ends = s.ends + windows * s.per
      local missing = ahead(s, p, 0, ends) + p.need - (s.n - s.used)
      if missing > windows * s.n then return max(after, min(floor((missing - 1) / s.n) * s.per, YEAR) + s.ends - now) end
      return ahead(s, p, windows > 0 and ends - s.per or 0, ends) > max(0, s.n - p.need) and ends - now or after -- others come in this window
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
    leave(s, p)
    id, till = now, s.ends - now
  end
  local state = pack(STATE, FORMAT, now, s.busy, s.before, s.hold, s.confirmed, s.tick, s.n, s.per, s.full, s.used, s.at, s.ends)
  local line, last = packLine(s.line, 0)
  if s.debt > 0 or line ~= '' then state = state .. pack('<d', s.debt) .. line end
  last = max(last, s.ends + come(s, s.debt))
  call('SET', key, state, 'PX', max(1, ceil((max(last, s.hold) + LINGER - now) / 1000)))
  return respond(p, s, id, tokens, tokens, 0, till, s.n - s.used)
end

kinds[3] = { read = readFixed, write = writeFixed }
kinds[CALENDAR] = kinds[3]
