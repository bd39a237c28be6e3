-- Who may pass by address. Ranges are made tables when the configuration loads, one for each length of
-- prefix, so that a thousand ranges cost a request as much as ten.

local handler = { version = "v2" }

local byte = string.byte

-- The bytes that `%s` stands for.
local is_space = { [9] = true, [10] = true, [11] = true, [12] = true, [13] = true, [32] = true }

local band, bor, lshift = bit.band, bit.bor, bit.lshift

-- The 32 bits of an IPv4 address, or nil. Numbers with a leading zero are none: some read them as octal.
local function parse_v4(text)
  local a, b, c, d = text:match("^(%d+)%.(%d+)%.(%d+)%.(%d+)$")
  if not a then
    return nil
  end
  local address = 0
  for _, part in ipairs({ a, b, c, d }) do
    local number = tonumber(part)
    if #part > 3 or number > 255 or (#part > 1 and part:byte() == 48) then
      return nil
    end
    address = bor(lshift(address, 8), number)
  end
  return address
end

-- Appends the 16-bit groups of `text` to `groups`; false when it has anything else.
local function add_groups(text, groups, may_end_with_v4)
  if text == "" then
    return true
  end
  local position = 1
  while true do
    local colon = text:find(":", position, true)
    local group = text:sub(position, (colon or 0) - 1)
    if not colon and may_end_with_v4 and group:find(".", 1, true) then
      local v4 = parse_v4(group)
      if not v4 then
        return false
      end
      groups[#groups + 1] = band(bit.rshift(v4, 16), 0xffff)
      groups[#groups + 1] = band(v4, 0xffff)
      return true
    end
    if not group:find("^%x%x?%x?%x?$") then
      return false
    end
    groups[#groups + 1] = tonumber(group, 16)
    if not colon then
      return true
    end
    position = colon + 1
  end
end

-- The eight groups of an IPv6 address, or nil.
local function parse_v6(text)
  local head, tail = {}, {}
  local gap = text:find("::", 1, true)
  if not gap then
    return add_groups(text, head, true) and #head == 8 and head or nil
  end
  if not add_groups(text:sub(1, gap - 1), head, false) or not add_groups(text:sub(gap + 2), tail, true) then
    return nil
  end
  if #head + #tail > 7 then
    return nil
  end
  while #head + #tail < 8 do
    head[#head + 1] = 0
  end
  for _, group in ipairs(tail) do
    head[#head + 1] = group
  end
  return head
end

-- An address as 32-bit words: one of IPv4, four of IPv6. An IPv4 address in IPv6 clothes
-- (`::ffff:1.2.3.4`) is the IPv4 address. Nil for what is none.
local function parse(text)
  local v4 = parse_v4(text)
  if v4 then
    return { v4 }
  end
  -- `%eth0` names a link of the machine that wrote it.
  local groups = parse_v6((text:gsub("%%[%w%._~-]+$", "")))
  if not groups then
    return nil
  end
  local words = {}
  for index = 1, 4 do
    words[index] = bor(lshift(groups[2 * index - 1], 16), groups[2 * index])
  end
  if words[1] == 0 and words[2] == 0 and words[3] == 0xffff then
    return { words[4] }
  end
  return words
end

-- The first `prefix` bits of an address, as a key of a table.
local function prefix_key(words, prefix)
  local word = words[1]
  if #words == 1 then
    if prefix == 0 then
      return 0
    end
    return band(word, lshift(-1, 32 - prefix))
  end
  local parts = {}
  for index = 1, 4 do
    local bits = prefix - 32 * (index - 1)
    if bits >= 32 then
      parts[index] = words[index]
    elseif bits > 0 then
      parts[index] = band(words[index], lshift(-1, 32 - bits))
    else
      parts[index] = 0
    end
  end
  return table.concat(parts, ":")
end

-- Address and length of the prefix of `10.0.0.0/8`, or nil.
local function parse_range(text)
  local address, length = text:match("^([^/]+)/(%d+)$")
  local words = parse(address or text)
  if not words then
    return nil
  end
  local most = #words * 32
  if not address then
    return words, most
  end
  length = tonumber(length)
  -- `::ffff:10.0.0.0/104` is `10.0.0.0/8`.
  if #words == 1 and address:find(":", 1, true) then
    length = length - 96
  end
  if length < 0 or length > most then
    return nil
  end
  return words, length
end

-- Ranges as { [number of words] = list of { prefix, set of keys } }.
local function compile(list, name)
  if not list then
    return nil
  end
  local by_length = { [1] = {}, [4] = {} }
  for index, text in ipairs(list) do
    local words, prefix = parse_range(text)
    if not words then
      error(name .. "." .. index - 1 .. ": `" .. text .. "` is no address and no range such as 10.0.0.0/8 or 2001:db8::/32", 0)
    end
    local sets = by_length[#words]
    sets[prefix] = sets[prefix] or {}
    sets[prefix][prefix_key(words, prefix)] = true
  end
  local ranges = {}
  for count, sets in pairs(by_length) do
    ranges[count] = {}
    for prefix, keys in pairs(sets) do
      table.insert(ranges[count], { prefix = prefix, keys = keys })
    end
  end
  return ranges
end

local function contains(ranges, words)
  for _, set in ipairs(ranges[#words]) do
    if set.keys[prefix_key(words, set.prefix)] then
      return true
    end
  end
  return false
end

-- Compiled ranges by configuration; one that is gone takes them along.
local prepared = setmetatable({}, { __mode = "k" })

function handler:on_configure(config)
  if config.header and not config.trusted_proxies then
    error("`header` has no meaning without `trusted_proxies`; say who may be believed", 0)
  end
  prepared[config] = {
    allow = compile(config.allow, "allow"),
    deny = compile(config.deny, "deny"),
    trusted = compile(config.trusted_proxies, "trusted_proxies"),
    header = (config.header or "x-forwarded-for"):lower(),
  }
end

-- The text without the spaces around it. A pattern such as `^%s*(.-)%s*$` takes time that grows with the
-- square of the length.
local function trimmed(text)
  local first, last = text:find("%S"), #text
  if not first then
    return ""
  end
  while is_space[byte(text, last)] do
    last = last - 1
  end
  return text:sub(first, last)
end

-- The IP address of `1.2.3.4`, `1.2.3.4:80`, `[::1]:80` or `::1`.
local function without_port(address)
  return address:match("^%[(.-)%]") or address:match("^(%d+%.%d+%.%d+%.%d+):%d+$") or address
end

-- The client's address as words, or nil where nobody can say. What a proxy says is believed as long as
-- each proxy behind it is trusted: the client itself may have sent the beginning of the header.
local function client(setup)
  local peer = envoy.streaminfo.downstream_remote_address()
  local words = peer and parse(without_port(peer))
  if not setup.trusted or not words then
    return words
  end
  local hops = {}
  for index = 0, envoy.req.get_header_size(setup.header) - 1 do
    for hop in (envoy.req.get_header_index(setup.header, index) or ""):gmatch("[^,]+") do
      hops[#hops + 1] = trimmed(hop)
    end
  end
  local last = #hops
  if setup.header == "x-forwarded-for" then
    -- Envoy has added the connection itself already; for one from this machine, its own address in place
    -- of loopback.
    last = last - 1
  end
  for index = last, 1, -1 do
    if not contains(setup.trusted, words) then
      return words
    end
    words = parse(without_port(hops[index]))
    if not words then
      return nil
    end
  end
  return words
end

local function refuse(config, details)
  envoy.respond(
    { [":status"] = tostring(config.status or 403), ["content-type"] = "text/plain" },
    config.message or "forbidden\n",
    details
  )
end

function handler:on_request_header()
  local config = envoy.config()
  local setup = prepared[config]
  local words = client(setup)
  if not words then
    return refuse(config, "outrider.ip-restriction.unknown_address")
  end
  if setup.deny and contains(setup.deny, words) then
    return refuse(config, "outrider.ip-restriction.denied")
  end
  if setup.allow and not contains(setup.allow, words) then
    return refuse(config, "outrider.ip-restriction.not_allowed")
  end
end

return handler
