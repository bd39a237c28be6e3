-- Compares the SDK's string functions and table.sort with LuaJIT's own, on patterns, subjects and lists
-- that a seed decides. Logs what differs, at most 20 of it, and how many were compared.
local original = envoy.original
local random, concat = math.random, table.concat

local PIECES = {
    "a", "b", "c", "x", "1", " ", "%a", "%A", "%d", "%D", "%s", "%w", "%W", "%x", "%p", "%c", "%l", "%u",
    "%g", "%z", "%Z", "%%", "%.", "%q", "%_", ".", "[ab]", "[^ab]", "[a-c]", "[%a_]", "[]]", "[^]]", "[a-]",
    "[%-x]", "[%]]", "[a-%%]", "[^%s%d]", "[", "]", "(", "(", "(", ")", ")", ")", "()", "%b()", "%bab", "%b",
    "%f[%w]", "%f[^a]", "%f", "%f[", "*", "+", "-", "?", "*", "+", "-", "?", "^", "$", "%1", "%2", "%9", "%0",
    "%", "\0", "a*", "b-", ".-", "(a)", "(b*)", "(.-)", "\200",
}
local BYTES = { "a", "a", "a", "b", "b", "c", "x", "1", " ", "(", ")", "-", "]", "%", "_", "\0", "\200", "\n", "A" }
local REPLACEMENTS = { "", "y", "<%0>", "%1", "[%1%2]", "%%", "%", "%9", "%a", "x%0%0", "\0" }

local function made_of(list, most)
    local parts = {}
    for i = 1, random(0, most) do
        parts[i] = list[random(#list)]
    end
    return concat(parts)
end

local function shown(...)
    local parts = {}
    for i = 1, select("#", ...) do
        local value = select(i, ...)
        parts[i] = type(value) .. ":" .. tostring(value)
    end
    return concat(parts, ",")
end

local function all(gmatch, subject, pattern)
    local parts, count = {}, 0
    local next_match = gmatch(subject, pattern)
    while true do
        local found = shown(next_match())
        count = count + 1
        if found == "" or count > 100 then
            break
        end
        parts[count] = found
    end
    return concat(parts, ";")
end

local function some(a, b)
    if a == "b" then
        return false
    elseif a == "c" then
        return nil
    elseif a == 2 then
        return 42
    end
    return "<" .. tostring(a) .. "|" .. tostring(b) .. ">"
end
local TABLE = { a = "A", b = false, [""] = "empty", [1] = "one", ab = 12, aa = {} }

local compared, wrong = 0, 0
local function compare(what, own, other, subject, pattern, ...)
    local left, right = shown(pcall(own, subject, pattern, ...)), shown(pcall(other, subject, pattern, ...))
    compared = compared + 1
    if left ~= right and wrong < 20 then
        wrong = wrong + 1
        envoy.logErr(("%s(%q, %q, %s): %s; LuaJIT: %s"):format(what, subject, pattern, shown(...), left, right))
    end
end

return {
    on_request_header = function()
        math.randomseed(20261121)
        for _ = 1, 30000 do
            local subject, pattern = made_of(BYTES, 14), made_of(PIECES, 6)
            local init = random(4) == 1 and random(-20, 20) or nil
            compare("find", string.find, original.find, subject, pattern, init)
            compare("find", string.find, original.find, subject, pattern, init, true)
            compare("match", string.match, original.match, subject, pattern, init)
            compare("gmatch", function(...) return all(string.gmatch, ...) end,
                function(...) return all(original.gmatch, ...) end, subject, pattern)
            local most = random(4) == 1 and random(-1, 3) or nil
            local replacement = REPLACEMENTS[random(#REPLACEMENTS)]
            compare("gsub", string.gsub, original.gsub, subject, pattern, replacement, most)
            compare("gsub", string.gsub, original.gsub, subject, pattern, some, most)
            compare("gsub", string.gsub, original.gsub, subject, pattern, TABLE, most)
        end
        for _ = 1, 3000 do
            local list, other = {}, {}
            local kind = random(4)
            for i = 1, random(0, 60) do
                local value = random(30)
                list[i] = kind == 1 and tostring(value) or kind == 2 and { value, i } or value
                other[i] = list[i]
            end
            local before
            if kind == 2 then
                before = function(a, b) return a[1] < b[1] end
            elseif kind == 3 then
                before = function(a, b) return a > b end
            elseif kind == 4 and random(3) == 1 then
                -- No order at all.
                before = function() return true end
            end
            local left, right = shown(pcall(table.sort, list, before)), shown(pcall(original.sort, other, before))
            compared = compared + 1
            local same = left == right and #list == #other
            for i = 1, #list do
                same = same and list[i] == other[i]
            end
            if not same and wrong < 20 then
                wrong = wrong + 1
                envoy.logErr("sort " .. kind .. " of " .. #list .. ": " .. left .. "; LuaJIT: " .. right)
            end
        end
        -- Arguments, and messages with the place.
        for _, case in ipairs({
            { "find" }, { "find", "a" }, { "find", {}, "a" }, { "find", "a", {} }, { "find", "a", "a", "x" },
            { "find", "a", "a", {} }, { "find", 121, 2 }, { "find", "a2", "2", "2" }, { "find", "abc", "b", 1.9 },
            { "find", "abc", "b", -1.5 }, { "find", "abc", "", 10 },
            { "match", nil, "x" }, { "match", "x", nil }, { "match", 12, "%d" }, { "gmatch", nil, "x" },
            { "gmatch", "x", false }, { "gsub", "x", "x" }, { "gsub", "x", "x", true }, { "gsub", "x", "x", 5 },
            { "gsub", "x", "x", "y", "z" }, { "gsub", "x", "x", "y", "0" }, { "gsub", "x", "%", "y" },
            { "gsub", "x", "(x", "%1" }, { "gsub", "x", "x", function() return {} end },
            { "gsub", "x", "x", { x = {} } }, { "gsub", 5, 5, 6 }, { "sort" }, { "sort", 1 }, { "sort", {}, 1 },
            { "sort", { 1, "x" } }, { "sort", { {}, {} } }, { "sort", { 1, 2, 3, nil, 5, false } },
        }) do
            local name = case[1]
            local own, other = string[name] or table[name], original[name]
            local function direct(run)
                local find = run
                local done, answer = pcall(function()
                    local answer = find(case[2], case[3], case[4], case[5])
                    return answer
                end)
                return tostring(done) .. " " .. (type(answer) == "function" and "function" or tostring(answer))
            end
            local left, right = direct(own), direct(other)
            compared = compared + 1
            -- LuaJIT's own sorting names no place where values cannot be compared; ours does.
            if right:find("attempt to compare", 1, true) then
                left = left:gsub("probe/main%.lua:%d+: ", "")
            end
            if left ~= right then
                envoy.logErr(shown(unpack(case)) .. ": " .. left .. "; LuaJIT: " .. right)
            end
        end
        envoy.logInfo(compared .. " compared")
    end,
}
