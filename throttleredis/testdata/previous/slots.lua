-- Slots of requests in flight: a hash with a field for each process, so that an ask costs as much with 1,000 processes as with one.
-- The field of a process is named after its holder. As doubles:
--   count  the slots that it has
--   wants  those that it waits for
--   till   when they are free again
-- The field without a name, the format as a byte, then as doubles:
--   hold                    until when the budget is blocked
--   confirmed, n            when a process last asked by the number of slots that counts, and that number
--   used, wanted, holders   the sums of count and wants over all fields, and the number of fields
--   earliest                no till is earlier
-- and as 7 bytes, because Redis keeps a hash small whose values have no more than 64 bytes
--   closed                  no slot is granted before; earlier releases leave it out
local FIELDS, HOLDING, LEASED = '<BdddddddI7', '<ddd', 10000000
local SURELY, CLOSED, NOT_CLOSED = LEASED - 1000000, 4000000, pack('<I7', 0)

local function readSlots(key, p)
  local b = p.budget
  local s = {
    tick = 1, n = b.n, per = 1, full = 0, hold = 0, confirmed = now, used = 0, wanted = 0, holders = 0, earliest = now + LEASED,
    closed = 0, wait = 0, can = 0, there = 0,
  }
  local fields, had = call('HMGET', key, '', p.holder), nil
  if fields[1] then
    local format
    format, s.hold, s.confirmed, s.n, s.used, s.wanted, s.holders, s.earliest, s.closed = unpack(FIELDS, fields[1] .. NOT_CLOSED)
    if format ~= FORMAT then error({ key = key, format = format }) end
  end
  if now >= s.earliest then -- at most once in about 7 s while all processes renew their slots
    local all = call('HGETALL', key)
    s.used, s.wanted, s.holders, s.earliest = 0, 0, 0, now + LEASED
    for i = 1, #all, 2 do
      if all[i] ~= '' then
        local count, wants, till = unpack(HOLDING, all[i + 1])
        if till > now then
          s.used, s.wanted, s.holders, s.earliest = s.used + count, s.wanted + wants, s.holders + 1, min(s.earliest, till)
        else -- the process has not asked for 10 s
          call('HDEL', key, all[i])
        end
      end
    end
  end
  if fields[2] then -- from here on, the sums are of the other processes
    local count, wants, till = unpack(HOLDING, fields[2])
    if till > now then
      had = count
      s.used, s.wanted, s.holders = s.used - count, s.wanted - wants, s.holders - 1
    end
  end
  local isLost = not had and p.since > 0 and p.since < SURELY
  had = had or 0
  if govern(s, p) then s.n = b.n end
  if p.hold > 0 then s.hold = max(s.hold, now + p.hold) elseif p.hold < 0 then s.hold = 0 end
  s.closed = min(s.closed, now + CLOSED) -- the clock went back: no time has passed
  if now >= s.closed and (isLost or p.held > had) then s.closed = now + CLOSED end
  p.over = max(0, min(p.held - had, s.used + p.held - s.n))
  s.can = now < s.closed and 0 or max(0, s.n - s.used - p.held)
  if p.held < had and s.wanted > 0 then s.can = 0 end -- what it gives back is for those that wait
  s.there = s.can
  s.wait = max(0, s.hold - now)
  if p.need > s.can then
    s.wait = max(s.wait, s.closed - now, min(100, s.holders + ((p.held > 0 or p.want > 0) and 1 or 0)) * 10000)
  end
  return s
end

local function writeSlots(key, s, p, tokens)
  local id, till, left = 0, 0, s.n - s.used - p.held - tokens
  if now >= s.closed then left = left - s.wanted end -- before, nobody else gets what a process gives back
  if tokens > 0 then id, till = now, LEASED end
  if p.held > 0 or p.want > 0 or tokens > 0 then
    local count, wants = p.held + tokens, max(0, p.want - tokens)
    s.used, s.wanted, s.holders, s.earliest = s.used + count, s.wanted + wants, s.holders + 1, min(s.earliest, now + LEASED)
    call('HSET', key, p.holder, pack(HOLDING, count, wants, now + LEASED))
  else
    call('HDEL', key, p.holder)
  end
  call('HSET', key, '', pack(FIELDS, FORMAT, s.hold, s.confirmed, s.n, s.used, s.wanted, s.holders, s.earliest, s.closed))
  call('PEXPIRE', key, ceil((max(s.hold, s.closed, s.holders > 0 and now + LEASED or now) + LINGER - now) / 1000))
  return respond(p, s, id, tokens, tokens, 0, till, left)
end

kinds[4] = { read = readSlots, write = writeSlots }
