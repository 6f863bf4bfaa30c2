-- The asks. ARGV[1] has doubles: notAfter, nonce (whether there is one), and asks (their number). For each ask the number of its
-- parts, and for each part
--   what (the sum of 1 if a budget follows, 2 if extras do, 4 if its rule replaces the one that counts, 8 if need or
--   want is granted and nothing between, 16 if it may wait in a queue, 32 if it has a place there),
--   need, due, want, ahead, ticks, since, and its place;
--   a budget: kind, tick, n, per, full, initial, owed, origin, horizon, and of a calendar when four windows in a row begin;
--     without it, the part has that of the one before;
--   extras: owe, hold, held, the length of holder, the number of returns, holder itself, and for each return its tokens and its lease.

-- Decides the parts of an ask: all get tokens or none. Wants are reduced in proportion, so that no part gets tokens that the requests
-- cannot use because another part lacks them.
local function decide(parts, first)
  local states, refused, least, out = {}, false, 1, ''
  local function whole(p, tokens) return p.whole and tokens < p.want and p.need or tokens end
  for i = 1, #parts do
    local p = parts[i]
    local s = p.budget.kind.read(KEYS[first + i], p)
    s.can = whole(p, max(p.need, min(p.want, s.can)))
    states[i] = s
    refused = refused or s.wait > 0
    if parts[least].want == 0 or s.can * parts[least].want < states[least].can * p.want then least = i end
  end
  if refused then enter(states, parts) end
  local some, wanted = states[least].can, parts[least].want
  for i = 1, #parts do
    local p, s, tokens = parts[i], states[i], 0
    if not refused then
      tokens = s.can
      if some == wanted then
        tokens = p.want
        if p.ahead > 0 then tokens = tokens + min(p.ahead, max(0, floor((s.there - p.want) / 4))) end
      elseif i ~= least then
        tokens = whole(p, min(s.can, max(p.need, floor(p.want * some / wanted))))
      end
    end
    out = out .. p.budget.kind.write(KEYS[first + i], s, p, tokens)
  end
  return out
end

local out, first, budget = { pack('<d', now) }, 0, nil
for i = 1, asks do
  local count, parts = nil, {}
  count, pos = unpack('<d', input, pos)
  for k = 1, count do
    local owe, hold, held, holder, back, names, backs = 0, 0, 0, '', '', 0, 0
    local what, need, due, want, ahead, ticks, since
    local queued = 0
    what, need, due, want, ahead, ticks, since, pos = unpack('<ddddddd', input, pos)
    if what >= 32 then queued, pos = unpack('<d', input, pos) end
    if what % 2 == 1 then
      local kind, tick, n, per, full, initial, owed, origin, horizon, windows
      kind, tick, n, per, full, initial, owed, origin, horizon, pos = unpack('<ddddddddd', input, pos)
      if kind == CALENDAR then
        windows = { unpack('<dddd', input, pos) }
        pos = windows[5]
      end
      budget = {
        kind = kinds[kind], tick = tick, n = n, per = per, full = full, initial = initial, owed = owed, origin = origin,
        horizon = horizon, windows = windows,
      }
    end
    if what % 4 >= 2 then
      owe, hold, held, names, backs, pos = unpack('<ddddd', input, pos)
      holder = sub(input, pos, pos + names - 1)
      pos = pos + names
      if not again then back = sub(input, pos, pos + backs * 16 - 1) end
      pos = pos + backs * 16
    end
    parts[k] = {
      budget = budget, need = need, due = due, want = want, ahead = ahead, ticks = ticks, since = since, replaces = what % 8 >= 4,
      whole = what % 16 >= 8, queue = what % 32 >= 16, queued = queued, place = 0,
      differs = false, over = 0, turn = 0, owe = owe, hold = hold, held = held, holder = holder, back = back,
    }
  end
  local ok, response = pcall(decide, parts, first)
  if not ok then -- the state at one of its keys is none, or cannot be written: this concerns no other ask
    if type(response) == 'table' then
      response = response.err or 'STATE the state at ' .. response.key .. ' has format ' .. response.format .. ', this release has ' .. FORMAT
    end
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
