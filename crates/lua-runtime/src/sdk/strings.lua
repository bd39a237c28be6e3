-- The functions of `string` and `table` that in LuaJIT run in C for as long as their arguments make
-- them, where no time budget ends them, or call back from there: patterns are matched by the host, which
-- looks at the clock; sorting is done in Lua. Results and messages are LuaJIT's. All of this is compiled
-- into traces, which LuaJIT's own functions are not.
--
-- The trap is the level of an error: it names the line that called the function here.
local core = ...
local call, host, text = core.call, core.host, core.text
local type, error, tostring, tonumber, pcall = type, error, tostring, tonumber, pcall
local rawget, rawset, rawequal, rawlen, next = rawget, rawset, rawequal, rawlen, next
local sub, byte, match, rep = string.sub, string.byte, string.match, string.rep
local lower, upper, reverse = string.lower, string.upper, string.reverse
local concat, insert, floor, ceil = table.concat, table.insert, math.floor, math.ceil
local getinfo, get_metatable = debug.getinfo, debug.getmetatable
local select, format = select, string.format
local lua_match, lua_replace = host.lua_match, host.lua_replace

-- As `Kind` in lua_patterns.rs.
local FIND, FIND_TEXT, MATCH, GLOBAL_MATCH, BY_FUNCTION, BY_TABLE = 0, 1, 2, 3, 4, 5
local POSITION = -2

local strings = {}

-- Raises for the argument of this number of the function that called the caller.
local function bad_argument(number, problem)
    local info = getinfo(3, "n")
    local name = info and info.name or "?"
    if info and info.namewhat == "method" then
        number = number - 1
        if number == 0 then
            error("calling '" .. name .. "' on bad self (" .. problem .. ")", 4)
        end
    end
    error("bad argument #" .. number .. " to '" .. name .. "' (" .. problem .. ")", 4)
end

local function expected(wanted, value)
    return wanted .. " expected, got " .. type(value)
end

local function wrong_kind(number, wanted, value)
    bad_argument(number, expected(wanted, value))
end

local function bad_replacement()
    bad_argument(3, "string/function/table expected")
end

local function to_text(value, number)
    if type(value) == "number" then
        return tostring(value)
    end
    bad_argument(number, expected("string", value))
end

-- The largest numbers are as good as those that C would make of them.
local function to_integer(value, number)
    local found = tonumber(value)
    if not found or type(value) ~= "number" and type(value) ~= "string" then
        bad_argument(number, expected("number", value))
    end
    if found ~= found then
        return 0
    end
    if found < 0 then
        found = -floor(-found)
    else
        found = floor(found)
    end
    return found > 2147483647 and 2147483647 or found < -2147483648 and -2147483648 or found
end

-- Raises what a negative answer means.
local function fail(answer)
    if answer == -4 then
        error(text(call.data, call.length), 3)
    elseif answer == -5 then
        -- Here the hook takes over.
        error("the time budget of the call is used up", 3)
    elseif answer == -7 then
        error("not enough memory", 3)
    end
    core.fail(answer, 2)
end

-- Where a search begins, counted from 0; beyond the end nothing is found, as in Lua 5.2.
local function beginning(init, length)
    if init < 0 then
        init = length + init
        return init < 0 and 0 or init
    end
    return init == 0 and 0 or init - 1
end

local function capture(subject, index)
    local pair = call.pairs[index]
    local start, length = pair.name_length, pair.value_length
    if length == POSITION then
        return start + 1
    end
    return sub(subject, start + 1, start + length)
end

local function captures_from(subject, index, count)
    if index == count then
        return
    end
    return capture(subject, index), captures_from(subject, index + 1, count)
end

-- The captures of the match that was found last, `count` of them.
local function captures(subject, count)
    if count == 1 then
        return capture(subject, 0)
    elseif count == 2 then
        return capture(subject, 0), capture(subject, 1)
    elseif count == 3 then
        return capture(subject, 0), capture(subject, 1), capture(subject, 2)
    elseif count == 4 then
        return capture(subject, 0), capture(subject, 1), capture(subject, 2), capture(subject, 3)
    end
    return captures_from(subject, 0, count)
end

function strings.find(subject, pattern, init, plain)
    if type(subject) ~= "string" then
        subject = to_text(subject, 1)
    end
    if type(pattern) ~= "string" then
        pattern = to_text(pattern, 2)
    end
    local from = init == nil and 0 or beginning(to_integer(init, 3), #subject)
    if from > #subject then
        return nil
    end
    local kind = plain and FIND_TEXT or FIND
    local answer = lua_match(call, kind, subject, #subject, pattern, #pattern, from)
    if answer == 1 then
        return call.number + 1, call.count
    elseif answer == 0 then
        return nil
    elseif answer < 0 then
        fail(answer)
    end
    return call.number + 1, call.count, captures(subject, answer - 1)
end

function strings.match(subject, pattern, init)
    if type(subject) ~= "string" then
        subject = to_text(subject, 1)
    end
    if type(pattern) ~= "string" then
        pattern = to_text(pattern, 2)
    end
    local from = init == nil and 0 or beginning(to_integer(init, 3), #subject)
    if from > #subject then
        return nil
    end
    local answer = lua_match(call, MATCH, subject, #subject, pattern, #pattern, from)
    if answer == 2 then
        return capture(subject, 0)
    elseif answer == 0 then
        return nil
    elseif answer < 0 then
        fail(answer)
    end
    return captures(subject, answer - 1)
end

function strings.gmatch(subject, pattern)
    if type(subject) ~= "string" then
        subject = to_text(subject, 1)
    end
    if type(pattern) ~= "string" then
        pattern = to_text(pattern, 2)
    end
    local from = 0
    return function()
        if from > #subject then
            return
        end
        local answer = lua_match(call, GLOBAL_MATCH, subject, #subject, pattern, #pattern, from)
        if answer == 0 then
            return
        elseif answer < 0 then
            fail(answer)
        end
        local stop = call.count
        from = stop == call.number and stop + 1 or stop
        return captures(subject, answer - 1)
    end
end

local function replace(subject, pattern, replacement, most, kind)
    local anchored = byte(pattern, 1) == 94
    local pieces, used, count, from, copied = {}, 0, 0, 0, 0
    while count < most do
        local answer = lua_match(call, kind, subject, #subject, pattern, #pattern, from)
        if answer == 0 then
            break
        elseif answer < 0 then
            return answer
        end
        count = count + 1
        local start, stop = call.number, call.count
        local value
        if kind == BY_TABLE then
            value = replacement[capture(subject, 0)]
        else
            value = replacement(captures(subject, answer - 1))
        end
        if not value then
            value = sub(subject, start + 1, stop)
        elseif type(value) ~= "string" and type(value) ~= "number" then
            error("invalid replacement value (a " .. type(value) .. ")", 3)
        end
        if start > copied then
            used = used + 1
            pieces[used] = sub(subject, copied + 1, start)
        end
        used = used + 1
        pieces[used] = value
        copied = stop
        from = stop > start and stop or start + 1
        if anchored or from > #subject then
            break
        end
    end
    if count == 0 then
        return 0, subject
    end
    pieces[used + 1] = sub(subject, copied + 1)
    return count, concat(pieces, "", 1, used + 1)
end

function strings.gsub(subject, pattern, replacement, most)
    if type(subject) ~= "string" then
        subject = to_text(subject, 1)
    end
    if type(pattern) ~= "string" then
        pattern = to_text(pattern, 2)
    end
    local kind = type(replacement)
    if kind == "number" then
        replacement, kind = tostring(replacement), "string"
    elseif kind ~= "string" and kind ~= "function" and kind ~= "table" then
        bad_replacement()
    end
    most = most == nil and 2147483647 or to_integer(most, 4)
    if kind ~= "string" then
        local count, made = replace(subject, pattern, replacement, most,
            kind == "table" and BY_TABLE or BY_FUNCTION)
        if count < 0 then
            fail(count)
        end
        return made, count
    end
    local count = lua_replace(call, subject, #subject, pattern, #pattern, replacement, #replacement, most)
    if count < 0 then
        fail(count)
    end
    return text(call.data, call.length), count
end

local function less(a, b)
    return a < b
end

-- Puts what is less than a pivot, the middle of three, before it; answers the pivot's place. nil: the part
-- is sorted.
local function partition(list, low, high, before)
    local first, last = rawget(list, low), rawget(list, high)
    if before(last, first) then
        rawset(list, low, last)
        rawset(list, high, first)
    end
    if high - low == 1 then
        return
    end
    local middle = floor((low + high) / 2)
    local pivot = rawget(list, middle)
    first = rawget(list, low)
    if before(pivot, first) then
        rawset(list, middle, first)
        rawset(list, low, pivot)
    else
        last = rawget(list, high)
        if before(last, pivot) then
            rawset(list, middle, last)
            rawset(list, high, pivot)
        end
    end
    if high - low == 2 then
        return
    end
    pivot = rawget(list, middle)
    rawset(list, middle, rawget(list, high - 1))
    rawset(list, high - 1, pivot)
    local i, j = low, high - 1
    while true do
        i = i + 1
        local left = rawget(list, i)
        while before(left, pivot) do
            if i >= high then
                error("invalid order function for sorting", 0)
            end
            i = i + 1
            left = rawget(list, i)
        end
        j = j - 1
        local right = rawget(list, j)
        while before(pivot, right) do
            if j <= low then
                error("invalid order function for sorting", 0)
            end
            j = j - 1
            right = rawget(list, j)
        end
        if j < i then
            break
        end
        rawset(list, i, right)
        rawset(list, j, left)
    end
    pivot = rawget(list, high - 1)
    rawset(list, high - 1, rawget(list, i))
    rawset(list, i, pivot)
    return i
end

-- Quicksort, step for step as LuaJIT sorts, so that equal ones come out in the same order. The larger parts
-- wait on a stack of its own: LuaJIT does not compile a function here that calls itself.
local function sort_part(list, low, high, before)
    local lows, highs, depth = nil, nil, 0
    while true do
        local place = low < high and partition(list, low, high, before)
        if place then
            if depth == 0 then
                lows, highs = {}, {}
            end
            depth = depth + 1
            if place - low < high - place then
                lows[depth], highs[depth] = place + 1, high
                high = place - 1
            else
                lows[depth], highs[depth] = low, place - 1
                low = place + 1
            end
        elseif depth > 0 then
            low, high = lows[depth], highs[depth]
            depth = depth - 1
        else
            return
        end
    end
end

-- Sorts the texts 1 to `count` of a list.
function strings.sort_texts(list, count)
    sort_part(list, 1, count, less)
end

-- Errors of the sorting itself name no place; the plugin's own, in its function, do.
local function sorted(done, problem)
    if not done then
        if type(problem) == "string" then
            if problem == "invalid order function for sorting" then
                error(problem, 3)
            end
            local comparison = match(problem, "^sdk/strings%.lua:%d+: (.*)$")
            if comparison then
                error(comparison, 3)
            end
        end
        error(problem, 0)
    end
end

function strings.sort(list, before)
    if type(list) ~= "table" then
        wrong_kind(1, "table", list)
    end
    if before ~= nil and type(before) ~= "function" then
        wrong_kind(2, "function", before)
    end
    sorted(pcall(sort_part, list, 1, rawlen(list), before or less))
end

-- Bytes that a function of LuaJIT's works on in C at most, and elements that it joins.
local PIECE, MOST_JOINED = 65536, 4096
-- LJ_MAX_STR
local LONGEST = 0x7fffff00

-- Converts a long text a piece at a time.
local function in_pieces(convert, value, is_backwards)
    local pieces, count = {}, ceil(#value / PIECE)
    for index = 1, count do
        local place = is_backwards and count + 1 - index or index
        pieces[place] = convert(sub(value, (index - 1) * PIECE + 1, index * PIECE))
    end
    return concat(pieces, "", 1, count)
end

function strings.lower(value)
    if type(value) ~= "string" then
        value = to_text(value, 1)
    end
    if #value > PIECE then
        return in_pieces(lower, value)
    end
    return lower(value)
end

function strings.upper(value)
    if type(value) ~= "string" then
        value = to_text(value, 1)
    end
    if #value > PIECE then
        return in_pieces(upper, value)
    end
    return upper(value)
end

function strings.reverse(value)
    if type(value) ~= "string" then
        value = to_text(value, 1)
    end
    if #value > PIECE then
        return in_pieces(reverse, value, true)
    end
    return reverse(value)
end

-- Joins a long list a part at a time. LuaJIT's message names the element; the place is the plugin's line.
local function join_parts(list, separator, from, to)
    local pieces, used = {}, 0
    for index = from, to, MOST_JOINED do
        local stop = index + MOST_JOINED - 1
        local done, piece = pcall(concat, list, separator, index, stop < to and stop or to)
        if not done then
            error(piece, 2)
        end
        used = used + 1
        pieces[used] = piece
    end
    if used > MOST_JOINED then
        return join_parts(pieces, separator, 1, used)
    end
    return concat(pieces, separator, 1, used)
end

function strings.concat(list, separator, first, last)
    if type(list) == "table" and (separator == nil or type(separator) == "string") then
        local from, to = first or 1, last or rawlen(list)
        if type(from) == "number" and type(to) == "number" and to - from >= MOST_JOINED
            and to - from <= 2147483647 then
            return join_parts(list, separator, from, to)
        end
    end
    return concat(list, separator, first, last)
end

function strings.rep(value, count, separator)
    if type(value) ~= "string" then
        value = to_text(value, 1)
    end
    if type(count) ~= "number" then
        count = to_integer(count, 2)
    end
    if separator == nil and #value * count <= PIECE then
        return rep(value, count)
    end
    count = to_integer(count, 2)
    if separator ~= nil and type(separator) ~= "string" then
        separator = to_text(separator, 3)
    end
    local length = #value + (separator and #separator or 0)
    if count <= 0 or length == 0 then
        return ""
    elseif length * count > LONGEST then
        error("not enough memory", 2)
    end
    local each = length < PIECE and floor(PIECE / length) or 1
    local pieces, whole, rest = {}, floor(count / each), count % each
    local piece = rep(value, each, separator)
    for index = 1, whole do
        pieces[index] = piece
    end
    if rest > 0 then
        whole = whole + 1
        pieces[whole] = rep(value, rest, separator)
    end
    return strings.concat(pieces, separator, 1, whole)
end

-- Elements that LuaJIT's own function moves in C at most.
local MOST_MOVED = 1000

-- LuaJIT's own moves whatever is between the position and the end of the list, however far away the position is.
function strings.insert(list, ...)
    if select("#", ...) == 2 and type(list) == "table" then
        local position, value = ...
        local place = tonumber(position)
        if place then
            -- NaN, too.
            if not (place >= 0 and place <= 2147483647) then
                error("bad argument #2 to 'insert' (position out of bounds)", 2)
            end
            local length = rawlen(list)
            if length - place >= MOST_MOVED then
                place = floor(place)
                for index = length, place, -1 do
                    rawset(list, index + 1, rawget(list, index))
                end
                rawset(list, place, value)
                return
            end
        end
    end
    return insert(list, ...)
end

-- Functions of LuaJIT's `table` that plain Lua 5.1 does not have. `move` is a loop here, which the time budget ends.
function strings.move(from, first, last, place, to)
    if type(from) ~= "table" then
        wrong_kind(1, "table", from)
    end
    first, last, place = to_integer(first, 2), to_integer(last, 3), to_integer(place, 4)
    if to == nil then
        to = from
    elseif type(to) ~= "table" then
        wrong_kind(5, "table", to)
    end
    local distance = place - first
    if place > last or place <= first or not rawequal(from, to) then
        for index = first, last do
            to[index + distance] = from[index]
        end
    else
        for index = last, first, -1 do
            to[index + distance] = from[index]
        end
    end
    return to
end

function strings.pack(...)
    return { n = select("#", ...), ... }
end

function strings.getn(list)
    if type(list) ~= "table" then
        wrong_kind(1, "table", list)
    end
    return rawlen(list)
end

-- LuaJIT's modules `table.new`, whose sizes are only hints, and `table.clear`.
function strings.new_table()
    return {}
end

function strings.clear_table(list)
    if type(list) ~= "table" then
        wrong_kind(1, "table", list)
    end
    for key in next, list do
        rawset(list, key, nil)
    end
end

-- Whether the directive of a format for the argument of this number is `%q`.
local function is_quoted(template, number)
    local count = 0
    for directive in strings.gmatch(template, "%%[-+ #0-9.]*(.)") do
        if directive ~= "%" then
            count = count + 1
            if count == number then
                return directive == "q"
            end
        end
    end
    return false
end

-- LuaJIT's own calls `__tostring` from C, one in another until the worker's own stack is at its end, and quotes
-- texts of any length there.
local function as_text(value, template, number)
    local kind = type(value)
    if kind == "table" then
        local metatable = get_metatable(value)
        if metatable and rawget(metatable, "__tostring") then
            return tostring(value)
        end
    elseif kind == "string" and #value > PIECE and is_quoted(template, number) then
        error("%q takes texts of " .. PIECE .. " bytes at most", 3)
    end
    return value
end
local function all_as_text(template, index, count, value, ...)
    if index > count then
        return
    end
    return as_text(value, template, index), all_as_text(template, index + 1, count, ...)
end

-- Calls at the end, so that messages name the plugin's line.
function strings.format(template, ...)
    local count = select("#", ...)
    if type(template) == "string" and #template > PIECE then
        error("the format has " .. #template .. " bytes; " .. PIECE .. " are allowed", 2)
    end
    if count == 0 then
        return format(template)
    elseif count == 1 then
        local a = ...
        return format(template, as_text(a, template, 1))
    elseif count == 2 then
        local a, b = ...
        return format(template, as_text(a, template, 1), as_text(b, template, 2))
    elseif count == 3 then
        local a, b, c = ...
        return format(template, as_text(a, template, 1), as_text(b, template, 2), as_text(c, template, 3))
    elseif count == 4 then
        local a, b, c, d = ...
        return format(template, as_text(a, template, 1), as_text(b, template, 2), as_text(c, template, 3), as_text(d, template, 4))
    elseif count == 5 then
        local a, b, c, d, e = ...
        return format(template, as_text(a, template, 1), as_text(b, template, 2), as_text(c, template, 3), as_text(d, template, 4), as_text(e, template, 5))
    elseif count == 6 then
        local a, b, c, d, e, f = ...
        return format(template, as_text(a, template, 1), as_text(b, template, 2), as_text(c, template, 3), as_text(d, template, 4), as_text(e, template, 5), as_text(f, template, 6))
    end
    -- LuaJIT does not compile this.
    return format(template, all_as_text(template, 1, count, ...))
end

return strings
