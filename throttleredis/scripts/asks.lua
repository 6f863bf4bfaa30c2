-- The asks. ARGV[1] has doubles: notAfter, nonce (whether there is one), and asks (their number). For each ask the number of its
-- parts, and for each part
--   what (the sum of 1 if a budget follows, 2 if extras do, 4 if its rule replaces the one that counts),
--   need, due, want, ahead, ticks, since;
--   a budget: kind, tick, n, per, full, initial, owed, origin, horizon, and of a calendar when four windows in a row begin;
--     without it, the part has that of the one before;
--   extras: owe, hold, held, the length of holder, the number of returns, holder itself, and for each return its tokens and its lease.
local kind, tick, n, per, full, initial, owed, origin, horizon
local first, second, third, fourth

local function readPart()
  local what, owe, hold, held, holder, back, names, backs = 0, 0, 0, 0, '', '', 0, 0
  local need, due, want, ahead, ticks, since
  what, need, due, want, ahead, ticks, since, pos = unpack('<ddddddd', input, pos)
  if what % 2 == 1 then
    kind, tick, n, per, full, initial, owed, origin, horizon, pos = unpack('<ddddddddd', input, pos)
    if kind == CALENDAR then first, second, third, fourth, pos = unpack('<dddd', input, pos) end
  end
  if what % 4 >= 2 then
    owe, hold, held, names, backs, pos = unpack('<ddddd', input, pos)
    holder = sub(input, pos, pos + names - 1)
    pos = pos + names
    if not again then back = sub(input, pos, pos + backs * 16 - 1) end
    pos = pos + backs * 16
  end
  return {
    kind = kinds[kind], need = need, due = due, want = want, ahead = ahead, ticks = ticks, since = since, replaces = what >= 4,
    tick = tick, n = n, per = per, full = full, initial = initial, owed = owed, origin = origin, horizon = horizon,
    owe = owe, hold = hold, held = held, holder = holder, back = back, windows = kind == CALENDAR and { first, second, third, fourth },
  }
end

local function plenty(s, p)
  if p.kind.ahead then return p.kind.ahead(s, p) end
  return max(0, floor((s.free - p.want) / 4))
end

-- Decides the parts of an ask: all get tokens or none. Wants are reduced in proportion, so that no part gets tokens that the requests
-- cannot use because another part lacks them.
local function decide(parts, first)
  local states, refused, least, out = {}, false, 1, ''
  for i = 1, #parts do
    local p = parts[i]
    local s = p.kind.read(KEYS[first + i], p)
    s.can = max(p.need, min(p.want, s.free))
    states[i] = s
    refused = refused or s.wait > 0
    if s.can * parts[least].want < states[least].can * p.want then least = i end
  end
  local some, wanted = states[least].can, parts[least].want
  for i = 1, #parts do
    local p, s, tokens = parts[i], states[i], 0
    if not refused then
      tokens = s.can
      if some == wanted then
        tokens = p.want + (p.ahead > 0 and min(p.ahead, plenty(s, p)) or 0)
      elseif i ~= least then
        tokens = min(s.can, max(p.need, floor(p.want * some / wanted)))
      end
    end
    out = out .. p.kind.write(KEYS[first + i], s, p, tokens)
  end
  return out
end

local out, first = { pack('<d', now) }, 0
for i = 1, asks do
  local count, parts = nil, {}
  count, pos = unpack('<d', input, pos)
  for k = 1, count do parts[k] = readPart() end
  local ok, response = pcall(decide, parts, first)
  if not ok then -- the state at one of its keys is none, or cannot be written: this concerns no other ask
    if type(response) == 'table' then response = response.err end
    response = tostring(response)
    if string.find(response, 'READONLY ', 1, true) then -- the client must drop its connection, which it does for this code
      return redis.error_reply('READONLY this is a replica')
    end
    response = pack('<dd', -1, #response) .. response
  end
  out[i + 1] = response
  first = first + count
end
return table.concat(out)
