//! `plugins/lua/body-rewrite/pattern.lua`: the regular expression of a Lua pattern replaces what
//! `string.gsub` replaces. The comparison is a plugin that compares random patterns and texts when it loads.
use std::fs;
use std::path::Path;

use outrider_plugin_testkit::LoadedPlugin;

const COMPARISON: &str = r#"
local patterns = require("pattern")

local items = {
  "a", "b", "x", "-", ".", "%d", "%a", "%A", "%s", "%S", "%w", "%p", "%c", "%x", "%.", "%%", "%$", "[ab]", "[^ab]",
  "[a-c1]", "[%d_]", "[^%d%s]", "[%]x]", "[]a]", "[^]a]", "[a-]", "[%W]", "$", "^", "\255", "[\200-\255]",
}
local signs = { "", "", "*", "+", "-", "?" }
local bytes = { "a", "b", "c", "x", "1", "2", "-", "_", " ", "\n", ".", "$", "%", "]", "^", "\200", "\255", "\0" }
local replacements = { "<%0>", "%1", "$1", "%%${0}", "", "$$%0%0" }

local function one_of(list)
  return list[math.random(#list)]
end

local function random_pattern()
  local parts, is_open, captures = {}, false, 0
  if math.random(6) == 1 then
    parts[1] = "^"
  end
  for _ = 1, math.random(5) do
    if not is_open and math.random(4) == 1 then
      parts[#parts + 1] = "("
      is_open, captures = true, captures + 1
    end
    parts[#parts + 1] = one_of(items) .. one_of(signs)
    if is_open and math.random(2) == 1 then
      parts[#parts + 1] = ")"
      is_open = false
    end
  end
  if is_open then
    parts[#parts + 1] = ")"
  end
  if math.random(6) == 1 then
    parts[#parts + 1] = "$"
  end
  return table.concat(parts), captures
end

local function random_text()
  local parts = {}
  for index = 1, math.random(0, 24) do
    parts[index] = one_of(bytes)
  end
  return table.concat(parts)
end

local translated = 0
for _ = 1, 4000 do
  local pattern, captures = random_pattern()
  local regex = patterns.translated(pattern)
  if regex then
    translated = translated + 1
    for _ = 1, 4 do
      local text, replacement = random_text(), one_of(replacements)
      local with = patterns.translated_replacement(replacement, captures)
      local wanted, wanted_count = text:gsub(pattern, replacement)
      local made, count = envoy.re.replace(text, regex, with)
      if made ~= wanted or count ~= wanted_count then
        error(("%q as %q on %q with %q: %q, not %q"):format(pattern, regex, text, replacement, made, wanted), 0)
      end
    end
  end
end
if translated < 1000 then
  error("only " .. translated .. " patterns were translated", 0)
end

return { version = "v2", on_log = function() end }
"#;

#[test]
fn regular_expression_of_a_lua_pattern_replaces_what_gsub_replaces() {
    let pattern = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../plugins/lua/body-rewrite")
        .join("pattern.lua");
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("comparison");
    fs::create_dir(&plugin).unwrap();
    fs::copy(pattern, plugin.join("pattern.lua")).unwrap();
    fs::write(plugin.join("main.lua"), COMPARISON).unwrap();
    fs::write(
        plugin.join("plugin.yaml"),
        "name: comparison\nruntime: lua\nversion: 1.0.0\n",
    )
    .unwrap();
    let package = outrider_plugin_store::open(&plugin).unwrap();
    LoadedPlugin::from_package(&package).unwrap();
}
