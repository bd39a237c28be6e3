-- Lua patterns as regular expressions, which are searched in linear time: the time that Lua's own
-- functions take for a pattern with repetitions grows with the square of the text, or with a higher power.
--
-- Not translated: `%b`, `%f`, `%1` to `%9` and `()`, which regular expressions do not have; patterns without
-- repetitions, which take linear time anyway; and patterns that can match nothing, because between two
-- matches Lua finds the empty text where a regular expression does not.

local pattern = {}

-- Members of a set, by the letter after `%`.
local classes = {
  a = "A-Za-z", c = "\\x00-\\x1f\\x7f", d = "0-9", l = "a-z", p = "!-/:-@\\[-`{-~", s = "\\x09-\\x0d\\x20",
  u = "A-Z", w = "0-9A-Za-z", x = "0-9A-Fa-f",
}

local function escaped(character)
  return string.format("\\x%02x", character:byte())
end

-- The set of a class such as `%a` or `%A`, or of an escaped character.
local function class(letter)
  local members = classes[letter:lower()]
  if members then
    return (letter:find("%u") and "[^" or "[") .. members .. "]"
  end
  return letter:find("%w") == nil and escaped(letter) or nil
end

-- The set that begins at `[`, and the index after it; nil where it is not translated.
local function set(text, index)
  local parts = { "[" }
  index = index + 1
  if text:sub(index, index) == "^" then
    parts[1] = "[^"
    index = index + 1
  end
  local is_first = true
  while is_first or text:sub(index, index) ~= "]" do
    is_first = false
    local character = text:sub(index, index)
    if character == "" then
      return nil
    elseif character == "%" then
      local part = class(text:sub(index + 1, index + 1))
      if not part then
        return nil
      end
      parts[#parts + 1] = part
      index = index + 2
    elseif text:sub(index + 1, index + 1) == "-" and text:find("^[^%]]", index + 2) then
      local last = text:sub(index + 2, index + 2)
      if character > last or last == "%" then
        return nil
      end
      parts[#parts + 1] = escaped(character) .. "-" .. escaped(last)
      index = index + 3
    else
      parts[#parts + 1] = escaped(character)
      index = index + 1
    end
  end
  parts[#parts + 1] = "]"
  return table.concat(parts), index + 1
end

local repetitions = { ["*"] = "*", ["+"] = "+", ["-"] = "*?", ["?"] = "?" }

-- The regular expression that matches what a valid Lua pattern matches, with the same captures; nil where
-- there is none, or no need of one.
function pattern.translated(text)
  local parts, index = { "(?s)" }, 1
  local is_repeated, is_never_empty = false, false
  if text:sub(1, 1) == "^" then
    parts[2], index = "\\A", 2
  end
  while index <= #text do
    local character = text:sub(index, index)
    local item
    if character == "(" or character == ")" then
      if text:sub(index, index + 1) == "()" then
        return nil
      end
      parts[#parts + 1] = character
      index = index + 1
    elseif character == "$" and index == #text then
      parts[#parts + 1] = "\\z"
      index = index + 1
    else
      if character == "%" then
        local letter = text:sub(index + 1, index + 1)
        item, index = class(letter), index + 2
      elseif character == "[" then
        item, index = set(text, index)
      elseif character == "." then
        item, index = ".", index + 1
      else
        item, index = escaped(character), index + 1
      end
      if not item then
        return nil
      end
      local sign = text:sub(index, index)
      local repetition = repetitions[sign]
      if repetition then
        is_repeated = true
        index = index + 1
      end
      is_never_empty = is_never_empty or not repetition or sign == "+"
      parts[#parts + 1] = item .. (repetition or "")
    end
  end
  return is_repeated and is_never_empty and table.concat(parts) or nil
end

-- A valid replacement of `string.gsub` as one of `envoy.re.replace`. Without captures, `%1` is the whole match.
function pattern.translated_replacement(text, captures)
  local parts, index = {}, 1
  while index <= #text do
    local character = text:sub(index, index)
    if character == "%" then
      local following = text:sub(index + 1, index + 1)
      if following:find("%d") then
        parts[#parts + 1] = "${" .. (captures == 0 and "0" or following) .. "}"
      else
        parts[#parts + 1] = following
      end
      index = index + 2
    else
      parts[#parts + 1] = character == "$" and "$$" or character
      index = index + 1
    end
  end
  return table.concat(parts)
end

return pattern
