-- Sliding windows: a log of leases. With 128 of them, those in the same 64th of the period are joined, and expire with the last.
-- The state after its head, as doubles:
--   used       the sum of the log
--   at, count  of each lease, in order of time
local function joined(s)
  local slot, out = max(1, floor(s.per / 64)), ''
  local at, count = unpack('<dd', s.log)
  for i = 17, #s.log, 16 do
    local next, c = unpack('<dd', s.log, i)
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
      s.log = sub(s.log, 1, -17) .. pack('<dd', now, count + tokens)
      return
    end
  end
  s.log = s.log .. pack('<dd', now, tokens)
  if #s.log >= 2048 then s.log = joined(s) end
end

local function backToLog(s, leased, tokens)
  if leased + s.per <= now then return end
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

-- The clock went back: no time has passed.
local function setBack(s)
  local log = ''
  for i = 1, #s.log, 16 do
    local at, count = unpack('<dd', s.log, i)
    log = log .. pack('<dd', at - (s.seen - now), count)
  end
  s.log = log
end

local function expire(s)
  local live = 1
  while live < #s.log do
    local at, count = unpack('<dd', s.log, live)
    if at + s.per > now then break end
    s.used = s.used - count
    live = live + 16
  end
  s.log = sub(s.log, live)
end

local function untilTokens(s, missing)
  if missing <= 0 then return 0 end
  for i = 1, #s.log, 16 do
    local at, count = unpack('<dd', s.log, i)
    missing = missing - count
    if missing <= 0 then return at + s.per - now end
  end
  return s.per
end

local function readSliding(key, p)
  local value = call('GET', key)
  local s = readHead(value, key, p)
  s.used, s.log = 0, ''
  if value then
    s.used = unpack('<d', value, HEADED + 1)
    s.log = sub(value, HEADED + 9)
  end
  if now < s.seen then setBack(s) end
  visit(s, p)
  if govern(s, p) then s.n, s.per = p.n, p.per end
  expire(s)
  for i = 1, #p.back, 16 do
    local tokens, leased = unpack('<dd', p.back, i)
    backToLog(s, leased, tokens)
  end
  local more = min(p.owe, 2 * s.n - s.used)
  if more > 0 then addToLog(s, more) end
  s.wait = max(0, s.hold - now)
  if p.need > 0 then s.wait = max(s.wait, untilTokens(s, p.need - (s.n - s.used))) end
  s.free = s.n - s.used
  return s
end

local function writeSliding(key, s, p, tokens)
  local id, till = 0, 0
  if tokens > 0 then
    addToLog(s, tokens)
    id, till = now, s.per
  end
  local last = now
  if #s.log > 0 then last = unpack('<d', s.log, #s.log - 15) + s.per end
  save(key, headOf(s) .. pack('<d', s.used) .. s.log, max(last, s.hold))
  if s.wait == 0 then s.wait = untilTokens(s, 1 - (s.n - s.used)) end
  return respond(p, s, id, tokens, tokens, 0, till, s.wait, s.n - s.used, processes(s))
end

kinds[2] = { read = readSliding, write = writeSliding }
