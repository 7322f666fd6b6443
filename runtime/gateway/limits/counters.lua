-- Takes and gives back what requests hold of their limits: one call, many operations, atomic for all gateways.
--
-- KEYS[1]  prefix of every key here
-- ARGV[1]  msgpack: {holder, sequence, lease_ms, fresh, retired holders, doubtful calls, operations}
-- returns  msgpack: {known, bucket, bucket's age in ms, gateways alive, results of the reserves in order}
--
-- A holder is one gateway process. What it holds (parallel requests, budget) counts while its lease lasts, so a
-- gateway that dies gives everything back by itself. A holder that is not known (its lease ran out and another one has
-- noticed, or the data was lost) gets known = 0 and nothing is done: it must come back under a new name.
--
-- A doubtful call is {holder, sequence, operations, reserves as {tokens, subjects counted by the minute}}: its answer
-- never came. If it had not arrived, its operations are done now; if it had, what its reserves took by the minute is
-- given back, for nobody was served on them (what else they took went with the holder).
--
-- Keys: alive (hash holder -> lease end, ms),
--   q:<holder> ("sequence:bucket:results" of its last call; a result is 1 for a reserve that took, 0 for one refused),
--   w:<subject> (window: s newest bucket, r and t totals, l newest bucket in use, r<slot>, t<slot>),
--   p:<subject> (hash holder -> parallel requests), b:<counter> (u used, h<holder> held).

local BUCKET_MS, SLOTS, KEEP_MS = 250, 241, 180000
local prefix = KEYS[1]
local input = cmsgpack.unpack(ARGV[1])
local holder, sequence, lease_ms, fresh = input[1], input[2], input[3], input[4]
local clock = redis.call('TIME')
local ms = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local now = math.floor(ms / BUCKET_MS)

-- Who is alive. Ends that have passed are forgotten here and nowhere else: whoever is in the hash is alive.
local alive, alive_count = {}, 0
local listed = redis.call('HGETALL', prefix .. 'alive')
for i = 1, #listed, 2 do
  if listed[i] ~= holder and tonumber(listed[i + 1]) < ms then
    redis.call('HDEL', prefix .. 'alive', listed[i])
  else
    alive[listed[i]] = true
  end
end
for _, name in ipairs(input[5]) do
  if alive[name] then
    alive[name] = nil
    redis.call('HDEL', prefix .. 'alive', name)
  end
end
if not fresh and not alive[holder] then
  return cmsgpack.pack({0, now, ms % BUCKET_MS, 0, {}})
end
alive[holder] = true
for _ in pairs(alive) do alive_count = alive_count + 1 end
redis.call('HSET', prefix .. 'alive', holder, ms + lease_ms)
redis.call('SET', prefix .. 'q:' .. holder, sequence .. ':' .. now .. ':', 'EX', 86400)

local windows, parallels, budgets = {}, {}, {}

local function slot_values(from, to)
  -- requests and tokens of the buckets from..to, two values each
  local names = {}
  for bucket = from, to do
    names[#names + 1] = 'r' .. (bucket % SLOTS)
    names[#names + 1] = 't' .. (bucket % SLOTS)
  end
  return names
end

local function window_of(subject)
  local window = windows[subject]
  if window then return window end
  local key = prefix .. 'w:' .. subject
  local head = redis.call('HMGET', key, 's', 'r', 't', 'l')
  window = {key = key, r = tonumber(head[2]) or 0, t = tonumber(head[3]) or 0, l = tonumber(head[4]) or 0, add = {}}
  local newest = tonumber(head[1]) or now
  window.newest = math.max(newest, now)
  if now - newest >= SLOTS then
    redis.call('DEL', key)
    window.r, window.t = 0, 0
  elseif now > newest then
    local names = slot_values(newest + 1, now)
    local values = redis.call('HMGET', key, unpack(names))
    local gone = {}
    for i = 1, #values, 2 do
      if values[i] or values[i + 1] then
        window.r = window.r - (tonumber(values[i]) or 0)
        window.t = window.t - (tonumber(values[i + 1]) or 0)
        gone[#gone + 1] = names[i]
        gone[#gone + 1] = names[i + 1]
      end
    end
    if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  end
  windows[subject] = window
  return window
end

local function window_add(window, bucket, requests, tokens)
  if bucket <= now - SLOTS then
    if tokens <= 0 and requests <= 0 then return end
    bucket = now -- more than was promised, long after: it counts from now on
  elseif bucket > now then
    bucket = now
  end
  local slot = window.add[bucket % SLOTS] or {0, 0}
  slot[1], slot[2] = slot[1] + requests, slot[2] + tokens
  window.add[bucket % SLOTS] = slot
  window.r, window.t = window.r + requests, window.t + tokens
  if bucket > window.l then window.l = bucket end
end

local function window_wait(window, limit, ask, by_tokens)
  -- ms until `ask` more fits under `limit` if nothing else comes; 0 when it fits now
  local used = by_tokens and window.t or window.r
  if used + ask <= limit then return 0 end
  local oldest = now - SLOTS + 1
  for from = oldest, now, 40 do
    local to = math.min(from + 39, now)
    local values = redis.call('HMGET', window.key, unpack(slot_values(from, to)))
    for bucket = from, to do
      local i = (bucket - from) * 2 + (by_tokens and 2 or 1)
      local added = window.add[bucket % SLOTS]
      used = used - (tonumber(values[i]) or 0) - (added and added[by_tokens and 2 or 1] or 0)
      if used + ask <= limit then return (bucket + SLOTS) * BUCKET_MS - ms end
    end
  end
  return SLOTS * BUCKET_MS
end

local function parallel_of(subject)
  local parallel = parallels[subject]
  if parallel then return parallel end
  parallel = {key = prefix .. 'p:' .. subject, total = 0, mine = {}, changed = {}}
  local rows = redis.call('HGETALL', parallel.key)
  for i = 1, #rows, 2 do
    if alive[rows[i]] then
      parallel.mine[rows[i]] = tonumber(rows[i + 1])
      parallel.total = parallel.total + tonumber(rows[i + 1])
    else
      redis.call('HDEL', parallel.key, rows[i])
    end
  end
  parallels[subject] = parallel
  return parallel
end

local function hold_change(table_, who, amount)
  -- never below nothing: what was forgotten with its holder is not given back twice
  local old = table_.mine[who] or 0
  local new = math.max(0, old + amount)
  table_.mine[who] = new
  table_.total = table_.total + new - old
  table_.changed[who] = true
end

local function budget_of(counter, seed, keep_s)
  local budget = budgets[counter]
  if not budget then
    budget = {key = prefix .. 'b:' .. counter, used = 0, total = 0, mine = {}, changed = {}, keep_s = keep_s}
    local rows = redis.call('HGETALL', budget.key)
    for i = 1, #rows, 2 do
      if rows[i] == 'u' then
        budget.used = tonumber(rows[i + 1])
      elseif alive[string.sub(rows[i], 2)] then
        budget.mine[string.sub(rows[i], 2)] = tonumber(rows[i + 1])
        budget.total = budget.total + tonumber(rows[i + 1])
      else
        redis.call('HDEL', budget.key, rows[i])
      end
    end
    budgets[counter] = budget
  end
  -- The books can only be behind; when they are ahead, the counter has lost something.
  if seed > budget.used then budget.used, budget.touched = seed, true end
  return budget
end

-- {id, requests per minute, tokens per minute, parallel, budget or false}; -1 is unlimited;
-- a budget is {counter, limit, seed, hold, blocks, keep_s}
local function refusal(index, subject, tokens)
  if subject[4] >= 0 then
    local parallel = parallel_of(subject[1])
    if parallel.total >= subject[4] then return {index, 'parallel', parallel.total, 0} end
  end
  if subject[2] >= 0 then
    local window = window_of(subject[1])
    local wait = window_wait(window, subject[2], 1, false)
    if wait > 0 then return {index, 'requests', window.r, wait} end
  end
  if subject[3] >= 0 then
    local window = window_of(subject[1])
    local wait = window_wait(window, subject[3], tokens, true)
    if wait > 0 then return {index, 'tokens', window.t, wait} end
  end
  local budget = subject[5]
  if budget and budget[5] then
    local state = budget_of(budget[1], budget[3], budget[6])
    if state.used + state.total + budget[4] > budget[2] then
      return {index, 'budget', state.used, state.total}
    end
  end
  return nil
end

local function standing(subject)
  local requests, tokens, latest, parallel, used, held = 0, 0, 0, 0, 0, 0
  if subject[2] >= 0 or subject[3] >= 0 then
    local window = window_of(subject[1])
    requests, tokens, latest = window.r, window.t, window.l
  end
  if subject[4] >= 0 then parallel = parallel_of(subject[1]).total end
  if subject[5] then
    local budget = budget_of(subject[5][1], subject[5][3], subject[5][6])
    used, held = budget.used, budget.total
  end
  return {requests, tokens, latest, parallel, used, held}
end

local function reserve(tokens, subjects)
  local refused
  for index, subject in ipairs(subjects) do
    refused = refusal(index - 1, subject, tokens)
    if refused then break end
  end
  if not refused then
    for _, subject in ipairs(subjects) do
      if subject[2] >= 0 or subject[3] >= 0 then window_add(window_of(subject[1]), now, 1, tokens) end
      if subject[4] >= 0 then hold_change(parallel_of(subject[1]), holder, 1) end
      local budget = subject[5]
      if budget then hold_change(budget_of(budget[1], budget[3], budget[6]), holder, budget[4]) end
    end
  end
  local standings = {}
  for index, subject in ipairs(subjects) do standings[index] = standing(subject) end
  return {refused or false, standings}
end

-- {id, counts in the window, parallel change, budget or false}; a budget is {counter, seed, held change, used change, keep_s}
local function apply(bucket, requests, tokens, who, subjects)
  for _, subject in ipairs(subjects) do
    if subject[2] then window_add(window_of(subject[1]), bucket, requests, tokens) end
    if subject[3] ~= 0 and alive[who] then hold_change(parallel_of(subject[1]), who, subject[3]) end
    local budget = subject[4]
    if budget then
      local state = budget_of(budget[1], budget[2], budget[5])
      if budget[3] ~= 0 and alive[who] then hold_change(state, who, budget[3]) end
      if budget[4] ~= 0 then state.used, state.touched = state.used + budget[4], true end
    end
  end
end

local function apply_all(operations)
  for _, op in ipairs(operations) do apply(op[2], op[3], op[4], op[5], op[6]) end
end

-- Calls whose answers never came: done once, whether they had arrived or not.
for _, doubtful in ipairs(input[6]) do
  local key = prefix .. 'q:' .. doubtful[1]
  local last, bucket, took = string.match(redis.call('GET', key) or '', '^(%d+):(%d+):([01]*)$')
  last = tonumber(last)
  if not last or last < doubtful[2] then
    apply_all(doubtful[3])
  elseif last == doubtful[2] then
    for i, reserved in ipairs(doubtful[4]) do
      if string.sub(took, i, i) == '1' then
        for _, subject in ipairs(reserved[2]) do
          window_add(window_of(subject), tonumber(bucket), -1, -reserved[1])
        end
      end
    end
  end
  redis.call('SET', key, math.max(last or 0, doubtful[2]) .. ':0:', 'EX', 86400)
end
local results = {}
for _, op in ipairs(input[7]) do
  if op[1] == 1 then
    results[#results + 1] = reserve(op[2], op[3])
  else
    apply(op[2], op[3], op[4], op[5], op[6])
  end
end

if #results > 0 then
  local took = {}
  for i, result in ipairs(results) do took[i] = result[1] and '0' or '1' end
  redis.call('SET', prefix .. 'q:' .. holder, sequence .. ':' .. now .. ':' .. table.concat(took), 'EX', 86400)
end

for _, window in pairs(windows) do
  for slot, added in pairs(window.add) do
    if added[1] ~= 0 then redis.call('HINCRBY', window.key, 'r' .. slot, added[1]) end
    if added[2] ~= 0 then redis.call('HINCRBY', window.key, 't' .. slot, added[2]) end
  end
  redis.call('HSET', window.key, 's', window.newest, 'r', window.r, 't', window.t, 'l', window.l)
  redis.call('PEXPIRE', window.key, KEEP_MS)
end
for _, parallel in pairs(parallels) do
  for who in pairs(parallel.changed) do
    if parallel.mine[who] > 0 then
      redis.call('HSET', parallel.key, who, parallel.mine[who])
      redis.call('EXPIRE', parallel.key, 172800)
    else
      redis.call('HDEL', parallel.key, who)
    end
  end
end
for _, budget in pairs(budgets) do
  if budget.touched then redis.call('HSET', budget.key, 'u', budget.used) end
  for who in pairs(budget.changed) do
    if budget.mine[who] > 0 then
      redis.call('HSET', budget.key, 'h' .. who, budget.mine[who])
    else
      redis.call('HDEL', budget.key, 'h' .. who)
    end
  end
  if budget.touched or next(budget.changed) then redis.call('EXPIRE', budget.key, budget.keep_s) end
end
return cmsgpack.pack({1, now, ms % BUCKET_MS, alive_count, results})
