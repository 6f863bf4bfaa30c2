-- Fixed windows, also those of a calendar: the count of the window in which the last ask was.
-- The state after its head, as doubles:
--   used   the tokens of that window
--   at     when one was last used
--   ends   when it ends
local function windowOf(s, p)
  local w, begins = p.windows, 0
  if not w then
    begins = now - (now - p.origin) % s.per
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
  local value = call('GET', key)
  local s = readHead(value, key, p)
  s.used, s.at = 0, now
  if value then s.used, s.at, s.ends = unpack('<ddd', value, HEADED + 1) end
  visit(s, p)
  if govern(s, p) then s.n, s.per = p.n, p.per end
  s.at = min(s.at, now) -- the clock went back: no time has passed
  local begins, ends = windowOf(s, p)
  if p.windows and p.differs and now < s.ends then -- the window is that of the rule that counts
    begins, ends = s.at, s.ends
  end
  s.ends = ends
  if s.at < begins then s.used, s.at = 0, now end
  for i = 1, #p.back, 16 do
    local tokens, leased = unpack('<dd', p.back, i)
    if leased >= begins then s.used = max(0, s.used - tokens) end
  end
  local more = min(p.owe, 2 * s.n - s.used)
  if more > 0 then s.used, s.at = s.used + more, now end
  s.wait = max(0, s.hold - now)
  if p.need > max(0, s.n - s.used) then s.wait = max(s.wait, s.ends - now) end
  s.free = s.n - s.used
  return s
end

local function writeFixed(key, s, p, tokens)
  local id, till = 0, 0
  if tokens > 0 then
    s.used, s.at = s.used + tokens, now
    id, till = now, s.ends - now
  end
  save(key, headOf(s) .. pack('<ddd', s.used, s.at, s.ends), max(s.ends, s.hold))
  return respond(p, s, id, tokens, tokens, 0, till, s.wait, s.n - s.used, processes(s))
end

kinds[3] = { read = readFixed, write = writeFixed }
kinds[CALENDAR] = kinds[3]
