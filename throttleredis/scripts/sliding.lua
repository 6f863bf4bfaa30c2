-- Sliding windows: a log of leases. With 128 of them, those in the same 64th of the period are joined, and expire with the last.
-- The state after its head, as doubles:
--   used       the sum of the log
--   at, count  of each lease, in order of time
-- While asks wait for tokens, the first lease is none: its at is minus the tokens, and its count 0. The release before drops it.
local STATE, LENGTH = '<Bdddddddddd', 81

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
  local b, value = p.budget, call('GET', key)
  local format, seen, busy, before, hold, confirmed, tick, n, per, full = FORMAT, now, 0, 0, 0, now, b.tick, b.n, b.per, b.full
  local used, log, waits = 0, '', 0
  if value then
    format, seen, busy, before, hold, confirmed, tick, n, per, full, used = unpack(STATE, value)
    if format ~= FORMAT then error({ key = key, format = format }) end
    log = sub(value, LENGTH + 1)
    local at = #log > 0 and unpack('<d', log) or 0
    if at < 0 then log, waits = sub(log, 17), -at end
  end
  if now < seen then -- the clock went back: no time has passed
    local moved = ''
    for i = 1, #log, 16 do
      local at, count = unpack('<dd', log, i)
      moved = moved .. pack('<dd', at - (seen - now), count)
    end
    log = moved
  end
  busy, before, hold = visit(p, seen, busy, before, hold)
  local s = {
    busy = busy, before = before, hold = hold, confirmed = confirmed, tick = tick, n = n, per = per, full = full,
    used = used, log = log, waits = waits, wait = 0, can = 0, there = 0,
  }
  if govern(s, p) then s.n, s.per = b.n, b.per end
  local live = 1
  while live < #s.log do
    local at, count = unpack('<dd', s.log, live)
    if at + s.per > now then break end
    s.used, s.waits = s.used - count, max(0, s.waits - count)
    live = live + 16
  end
  s.log = sub(s.log, live)
  if p.back ~= '' then
    local function backToLog(s, leased, tokens)
      if leased + s.per <= now then return end
      for i = 1, #s.log, 16 do
        local at, count = unpack('<dd', s.log, i)
        if at >= leased then
          tokens = min(tokens, count)
          s.used, s.waits = s.used - tokens, max(0, s.waits - tokens)
          s.log = sub(s.log, 1, i - 1) .. pack('<dd', at, count - tokens) .. sub(s.log, i + 16)
          return
        end
      end
    end
    for i = 1, #p.back, 16 do
      local tokens, leased = unpack('<dd', p.back, i)
      backToLog(s, leased, tokens)
    end
  end
  local more = min(p.owe, 2 * s.n - s.used)
  if more > 0 then addToLog(s, more) end
  s.wait = max(0, s.hold - now)
  if p.need > 0 then s.wait = max(s.wait, untilTokens(s, p.need - (s.n - s.used))) end
  if p.queue and s.wait > 0 and s.hold <= now then
    local missing = ahead(s, p) + p.need - (s.n - s.used)
    local again = floor((missing - 1) / max(1, s.used)) -- what is used when it comes in does so again after a period
    enter(s, p, again, untilTokens(s, missing - again * s.used))
  end
  s.can = s.n - s.used
  s.there = s.can
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
  local state = pack(STATE, FORMAT, now, s.busy, s.before, s.hold, s.confirmed, s.tick, s.n, s.per, s.full, s.used)
  if s.waits > 0 then state = state .. pack('<dd', -s.waits, 0) end
  call('SET', key, state .. s.log, 'PX', max(1, ceil((max(last, s.hold) + LINGER - now) / 1000)))
  if s.wait == 0 then s.wait = untilTokens(s, 1 - (s.n - s.used)) end
  return respond(p, s, id, tokens, tokens, 0, till, s.n - s.used)
end

kinds[2] = { read = readSliding, write = writeSliding }
