-- Sliding windows: a log of leases. With 128 of them, those in the same 64th of the period are joined, and expire with the last.
-- The state after its head, as doubles:
--   used       the sum of the log
--   at, count  of each lease, in order of time
-- The queue comes before the leases, with the tag 0. The release before drops it.
-- A debt takes tokens when it becomes known. Those that are missing then are taken as soon as they come in: the log has them at these
-- instants, which are known, although they are later. The release before counts them like leases.
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

-- Takes out of the log what is spent later than now, and adds it and what else is owed: each token is spent when it is there.
local function charge(s, p)
  local owed = p.owe
  while #s.log > 0 do
    local at, count = unpack('<dd', s.log, #s.log - 15)
    if at <= now then break end
    s.log, s.used, owed = sub(s.log, 1, -17), s.used - count, owed + count
  end
  owed = min(owed, mostDebt(s))
  if owed <= 0 then return end
  local log = {}
  for i = 1, #s.log, 16 do log[#log + 1] = { unpack('<dd', s.log, i) } end
  local i, sum = 1, 0 -- sum: of the log before i
  while owed > 0 do
    local at, tokens, left = now, owed, s.n - s.used
    if left > 0 then
      tokens = min(owed, left)
    else
      while sum + log[i][2] <= -left do i, sum = i + 1, sum + log[i][2] end
      at, tokens = log[i][1] + s.per, min(owed, sum + log[i][2] + left)
    end
    s.used, owed = s.used + tokens, owed - tokens
    if #log > 0 and log[#log][1] >= at then
      log[#log][2] = log[#log][2] + tokens
    else
      log[#log + 1] = { at, tokens }
    end
  end
  for i = 1, #log do log[i] = pack('<dd', log[i][1], log[i][2]) end
  s.log = table.concat(log)
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
  local used, log, line = 0, '', {}
  if value then
    format, seen, busy, before, hold, confirmed, tick, n, per, full, used = unpack(STATE, value)
    if format ~= FORMAT then error({ key = key, format = format }) end
    line, log = readLine(sub(value, LENGTH + 1), 0)
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
    used = used, log = log, line = line, wait = 0, can = 0, there = 0,
  }
  local changed = govern(s, p) and (s.n ~= b.n or s.per ~= b.per)
  if changed then s.n, s.per = b.n, b.per end
  local live = 1
  while live < #s.log do
    local at, count = unpack('<dd', s.log, live)
    if at + s.per > now then break end
    s.used = s.used - count
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
          s.used = s.used - tokens
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
  if p.owe > 0 or s.used < s.n or p.back ~= '' or changed then charge(s, p) end -- what is owed is paid at other instants
  s.wait = max(0, s.hold - now)
  if p.need > 0 then s.wait = max(s.wait, untilTokens(s, p.need - (s.n - s.used))) end
  if p.queue then
    s.turn = function(after)
      local missing = ahead(s, p, 0, 2 ^ 62) + p.need - (s.n - s.used)
      local again = floor(max(0, missing - 1 - max(0, s.used - s.n)) / s.n) -- what is used when it comes in does so again after a period
      return max(after, min(again * s.per, YEAR) + untilTokens(s, missing - again * s.n))
    end
  end
  s.can = s.n - s.used
  s.there = s.can
  return s
end

local function writeSliding(key, s, p, tokens)
  local id, till = 0, 0
  if tokens > 0 then
    addToLog(s, tokens)
    leave(s, p)
    id, till = now, s.per
  end
  local line, last = packLine(s.line, 0)
  last = max(last, now)
  if #s.log > 0 then last = max(last, unpack('<d', s.log, #s.log - 15) + s.per) end
  local state = pack(STATE, FORMAT, now, s.busy, s.before, s.hold, s.confirmed, s.tick, s.n, s.per, s.full, s.used)
  call('SET', key, state .. line .. s.log, 'PX', max(1, ceil((max(last, s.hold) + LINGER - now) / 1000)))
  if s.wait == 0 then s.wait = untilTokens(s, 1 - (s.n - s.used)) end
  return respond(p, s, id, tokens, tokens, 0, till, s.n - s.used)
end

kinds[2] = { read = readSliding, write = writeSliding }
