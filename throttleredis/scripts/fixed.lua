-- Fixed windows: the count of the window in which the last ask was.
-- The state after its head, as doubles:
--   used   the tokens of that window
--   at     when one was last used
local function readFixed(key, p)
  local value = call('GET', key)
  local s = readHead(value, key, p)
  s.used, s.at = 0, now
  if value then s.used, s.at = unpack('<dd', value, HEADED + 1) end
  visit(s, p)
  if govern(s, p) then s.n, s.per = p.n, p.per end
  s.at = min(s.at, now) -- the clock went back: no time has passed
  local begins = now - (now - p.origin) % s.per
  s.ends = begins + s.per
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
  save(key, headOf(s) .. pack('<dd', s.used, s.at), max(s.ends, s.hold))
  return respond(p, s, id, tokens, tokens, 0, till, s.wait, s.n - s.used, processes(s))
end

kinds[3] = { read = readFixed, write = writeFixed }
