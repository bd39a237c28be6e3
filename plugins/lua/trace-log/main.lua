-- One line of JSON for each request, written when the stream is over.
--
-- What clients send is written as text that every JSON parser takes: bytes that are not UTF-8 are
-- replaced, and long values are cut. A line stays within the length that logs keep whole, whatever comes.

local handler = { version = "v2" }

local encode, concat = envoy.json.encode, table.concat
local byte = string.byte
local REPLACEMENT = "\239\191\189"

-- A line of a log has at most 8 KiB. All texts of a line share so many bytes, as JSON; the rest is for
-- names, numbers and `fields`.
local LONGEST_TEXTS = 6000
local LONGEST_FIELDS = 1024

-- A byte takes at most this many in JSON, as `\u001f`.
local LONGEST_ESCAPE = 6

-- The members that each line has, in the order in which they stand there. The user's own cannot have
-- their names.
local own = {
  "time", "method", "host", "path", "protocol", "client", "route", "upstream", "upstream_host", "status",
  "details", "response_after_ms", "duration_ms", "request_headers", "response_headers",
}

-- Compiled configurations; one that is gone takes its compiled form along.
local prepared = setmetatable({}, { __mode = "k" })

local function lowered(list)
  local lower = {}
  for index, name in ipairs(list or {}) do
    lower[index] = name:lower()
  end
  return lower
end

function handler:on_configure(config)
  local taken = {}
  for _, name in ipairs(own) do
    taken[name] = true
  end
  local names, constant = {}, {}
  for name in pairs(config.fields or {}) do
    if taken[name] then
      error("fields: `" .. name .. "` is a member of every line; choose another name", 0)
    end
    names[#names + 1] = name
  end
  table.sort(names)
  for index, name in ipairs(names) do
    constant[index] = "," .. encode(name) .. ":" .. encode(config.fields[name])
  end
  if #concat(constant) > LONGEST_FIELDS then
    error("fields: they have more than " .. LONGEST_FIELDS .. " bytes as JSON; shorten them", 0)
  end
  prepared[config] = {
    constant = concat(constant),
    request_headers = lowered(config.request_headers),
    response_headers = lowered(config.response_headers),
    longest = config.longest_value or 1024,
  }
end

-- How many bytes the UTF-8 character that begins at `index` has; nil where there is none.
local function character(text, index)
  local first = byte(text, index)
  if first < 0x80 then
    return 1
  end
  local count, least, most
  if first >= 0xc2 and first <= 0xdf then
    count, least, most = 2, 0x80, 0xbf
  elseif first >= 0xe0 and first <= 0xef then
    -- No longer forms than needed, and no halves of UTF-16.
    count, least, most = 3, first == 0xe0 and 0xa0 or 0x80, first == 0xed and 0x9f or 0xbf
  elseif first >= 0xf0 and first <= 0xf4 then
    count, least, most = 4, first == 0xf0 and 0x90 or 0x80, first == 0xf4 and 0x8f or 0xbf
  else
    return nil
  end
  local second = byte(text, index + 1)
  if not second or second < least or second > most then
    return nil
  end
  for offset = 2, count - 1 do
    local following = byte(text, index + offset)
    if not following or following < 0x80 or following > 0xbf then
      return nil
    end
  end
  return count
end

-- The text with what is no UTF-8 replaced.
local function as_utf8(text)
  if not text:find("[\128-\255]") then
    return text
  end
  local parts, from, index = {}, 1, 1
  while index <= #text do
    local count = character(text, index)
    if not count then
      parts[#parts + 1] = text:sub(from, index - 1)
      parts[#parts + 1] = REPLACEMENT
      from = index + 1
    end
    index = index + (count or 1)
  end
  parts[#parts + 1] = text:sub(from)
  return concat(parts)
end

local function cut(text, longest)
  if #text <= longest then
    return as_utf8(text)
  end
  -- Not in the middle of a character.
  while longest > 0 and byte(text, longest + 1) >= 0x80 and byte(text, longest + 1) < 0xc0 do
    longest = longest - 1
  end
  return as_utf8(text:sub(1, longest)) .. "…"
end

-- Adds `"name":json` to a line; nothing for what is not known.
local function add(line, name, json)
  if json then
    line[#line + 1] = (#line > 1 and ',"' or '"') .. name .. '":' .. json
  end
end

-- The JSON of a text, cut to what is left for the line's texts; nil where nothing is left, or for nil.
local function text_of(line, text)
  if not text or line.left <= 0 then
    return nil
  end
  local json = encode(cut(text, line.longest))
  if #json > line.left then
    json = encode(cut(text, math.floor(line.left / LONGEST_ESCAPE)))
  end
  line.left = line.left - #json
  return json
end

-- Digits as they are usually written: 12.4, not 12.400000000000000355.
local function number_of(value)
  return value and string.format("%.14g", value)
end

-- The headers of a message that `names` lists, as JSON; nil where there are none.
local function headers_of(line, message, names)
  local parts = {}
  for _, name in ipairs(names) do
    local count, values = message.get_header_size(name), {}
    line.left = line.left - #name - 8
    for index = 0, count - 1 do
      values[#values + 1] = text_of(line, message.get_header_index(name, index) or "")
      if line.left <= 0 then
        break
      end
    end
    if #values > 0 then
      local json = count == 1 and values[1] or "[" .. concat(values, ",") .. "]"
      parts[#parts + 1] = encode(name) .. ":" .. json
    end
  end
  return #parts > 0 and "{" .. concat(parts, ",") .. "}" or nil
end

-- The IP address of `address:port`; IPv6 addresses come in brackets.
local function without_port(address)
  return address:match("^%[(.-)%]") or address:match("^(.*):%d+$") or address
end

function handler:on_request_header()
  local shared = envoy.stream.shared
  shared.began = envoy.time.monotonic()
end

function handler:on_response_header()
  local shared = envoy.stream.shared
  if shared.began then
    shared.response_after = envoy.time.monotonic() - shared.began
  end
end

local function is_wanted(config, status, duration)
  if config.always_from_status and status and status >= config.always_from_status then
    return true
  end
  if config.always_from_ms and duration >= config.always_from_ms then
    return true
  end
  -- `math.random` is below 1, so 0 means never and 100 means always.
  return math.random() * 100 < (config.sample or 100)
end

function handler:on_log()
  local config = envoy.config()
  local info = envoy.streaminfo
  local began = info.start_time()
  local duration = math.max(0, envoy.nowms() - began)
  local status = info.response_code()
  if not is_wanted(config, status, duration) then
    return
  end

  local setup = prepared[config]
  local path = envoy.req.get_header(":path")
  if path and not config.query then
    path = path:match("^[^?#]*")
  end
  local host = envoy.req.get_header(":authority")
  local client = info.downstream_remote_address()
  local response_after = envoy.stream.shared.response_after

  local line = { "{", left = LONGEST_TEXTS, longest = setup.longest }
  add(line, "time", encode(envoy.time.rfc3339(began)))
  add(line, "method", text_of(line, envoy.req.get_header(":method") or ""))
  add(line, "host", text_of(line, host))
  add(line, "path", text_of(line, path))
  add(line, "protocol", text_of(line, info.protocol()))
  add(line, "client", text_of(line, client and without_port(client)))
  add(line, "route", text_of(line, info.route_name()))
  add(line, "upstream", text_of(line, info.upstream_cluster()))
  add(line, "upstream_host", text_of(line, info.upstream_host()))
  add(line, "status", number_of(status))
  add(line, "details", text_of(line, info.response_code_details()))
  add(line, "response_after_ms", number_of(response_after and math.floor(response_after * 100 + 0.5) / 100))
  add(line, "duration_ms", number_of(duration))
  add(line, "request_headers", headers_of(line, envoy.req, setup.request_headers))
  add(line, "response_headers", headers_of(line, envoy.resp, setup.response_headers))
  line[#line + 1] = setup.constant
  line[#line + 1] = "}"

  if config.output == "log" then
    envoy.logInfo(concat(line))
  else
    envoy.filelog(concat(line))
  end
end

return handler
