//! Names that Lua plugins write as literals, compared with what they may do. Warnings only: the text of a script does not
//! say what runs, and Envoy denies at run time.

use std::collections::BTreeSet;

use outrider_plugin_formats::{
    FilterConfig, PluginEntry, PluginSource, Problem, REPORTING_HEADERS,
};

use super::known_names;
use super::plugins::Plugins;

/// Returns the warnings about the Lua plugins of a filter.
pub(super) fn warnings(
    filter: &FilterConfig,
    plugins: &Plugins,
    upstreams: &BTreeSet<String>,
) -> Vec<Problem> {
    let mut warnings = Vec::new();
    for entry in &filter.plugins {
        let PluginSource::Inline(files) = &entry.source else {
            continue;
        };
        let folder = plugins
            .get(&entry.name)
            .map_or("", |declared| declared.folder.as_str());
        for (file, text) in files {
            let mut script = Script {
                entry,
                file: match folder {
                    "" => file.clone(),
                    folder => format!("{folder}/{file}"),
                },
                literals: literals(text),
                named: BTreeSet::new(),
                warnings: &mut warnings,
            };
            if ["callout", "httpCall"]
                .iter()
                .any(|call| text.contains(call))
            {
                script.upstreams(upstreams);
            }
            script.router_headers();
            script.filter_state();
            script.claims();
        }
    }
    warnings
}

/// One file of a plugin.
struct Script<'a> {
    entry: &'a PluginEntry,
    file: String,
    literals: Vec<Literal<'a>>,
    /// Names that a warning of this file has.
    named: BTreeSet<&'a str>,
    warnings: &'a mut Vec<Problem>,
}

impl<'a> Script<'a> {
    fn upstreams(&mut self, upstreams: &BTreeSet<String>) {
        let plugin = &self.entry.name;
        for literal in self.literals.clone() {
            let name = literal.text;
            if upstreams.contains(name) {
                if !self.entry.allow.upstreams.has(name) {
                    self.warn(
                        literal,
                        format!(
                            "the plugin `{plugin}` names the upstream `{name}`, which it may not call"
                        ),
                        format!(
                            "if it calls it, add `{name}` to `plugins.{plugin}.allow.upstreams`"
                        ),
                    );
                }
            } else if literal.is_argument_of("httpCall") || literal.is_value_of("cluster") {
                let known = upstreams.iter().map(String::as_str);
                self.warn(
                    literal,
                    format!("the plugin `{plugin}` calls `{name}`: there is no upstream `{name}`"),
                    known_names(name, known, "upstreams"),
                );
            }
        }
    }

    fn router_headers(&mut self) {
        if self.entry.allow.router_headers {
            return;
        }
        let plugin = &self.entry.name;
        for literal in self.literals.clone() {
            let name = literal.text.to_ascii_lowercase();
            let steers =
                name.starts_with("x-envoy-") && !REPORTING_HEADERS.contains(&name.as_str());
            if !steers || literal.is_argument_of("get_header") || literal.is_argument_of("get") {
                continue;
            }
            self.warn(
                literal,
                format!(
                    "the plugin `{plugin}` names the header `{name}`, which steers Envoy's router and which it may \
                     not set in requests"
                ),
                format!("if it sets it there, add `router_headers: true` to `plugins.{plugin}.allow`"),
            );
        }
    }

    fn filter_state(&mut self) {
        let plugin = &self.entry.name;
        for literal in self.literals.clone() {
            let key = literal.text;
            let sets = literal.is_argument_of("set_typed")
                || (key.starts_with("envoy.") && literal.is_argument_of("filter_state.set"));
            if !sets || self.entry.allow.typed_filter_state.has(key) {
                continue;
            }
            self.warn(
                literal,
                format!(
                    "the plugin `{plugin}` sets the filter state `{key}`, which steers Envoy itself, and may not"
                ),
                format!("add `{key}` to `plugins.{plugin}.allow.typed_filter_state`"),
            );
        }
    }

    /// Claims of a token are nested in the metadata of Envoy's filter, and Envoy shows modules no nested values.
    fn claims(&mut self) {
        let plugin = &self.entry.name;
        for literal in self.literals.clone() {
            if literal.text != "envoy.filters.http.jwt_authn" {
                continue;
            }
            self.warn(
                literal,
                format!(
                    "the plugin `{plugin}` names the metadata of `jwt_authn`, whose claims Envoy does not show to modules: \
                     they are nested"
                ),
                "read headers that `claim_to_headers` of the `jwt_authn` provider sets; docs/envoy-lua.md says more"
                    .to_owned(),
            );
        }
    }

    /// Adds a warning, the first about a name.
    fn warn(&mut self, literal: Literal<'a>, message: String, mend: String) {
        if self.named.insert(literal.text) {
            self.warnings.push(Problem {
                file: self.file.clone(),
                line: literal.line,
                column: 0,
                message,
                mend: Some(mend),
            });
        }
    }
}

/// A text that a script writes literally, without escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Literal<'a> {
    text: &'a str,
    /// From 1.
    line: usize,
    /// The script up to the literal.
    before: &'a str,
}

impl Literal<'_> {
    /// Whether the literal is the first argument of a function, with or without parentheses.
    fn is_argument_of(self, function: &str) -> bool {
        let before = self.before.trim_end();
        let before = before.strip_suffix('(').unwrap_or(before).trim_end();
        ends_with_word(before, function)
    }

    /// Whether the literal is the value of a field of a table.
    fn is_value_of(self, field: &str) -> bool {
        let before = self.before.trim_end();
        let field_of = |before: &str| ends_with_word(before.trim_end(), field);
        before.strip_suffix('=').is_some_and(field_of)
    }
}

fn ends_with_word(text: &str, word: &str) -> bool {
    text.strip_suffix(word).is_some_and(|before| {
        !before.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_')
    })
}

/// The literals of a script that are one line long. Comments are passed over.
fn literals(script: &str) -> Vec<Literal<'_>> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut position = 0;
    while let Some(rest) = script.get(position..).filter(|rest| !rest.is_empty()) {
        let (opening, closing) = if rest.starts_with("--") {
            let is_long = rest.starts_with("--[[");
            if is_long {
                ("--[[", "]]")
            } else {
                ("--", "\n")
            }
        } else if rest.starts_with("[[") {
            ("[[", "]]")
        } else if rest.starts_with('"') {
            ("\"", "\"")
        } else if rest.starts_with('\'') {
            ("'", "'")
        } else {
            let first = rest.chars().next().unwrap_or_default();
            line += usize::from(first == '\n');
            position += first.len_utf8();
            continue;
        };
        let inside = rest.get(opening.len()..).unwrap_or_default();
        let Some(length) = end_of(inside, closing) else {
            break;
        };
        let text = inside.get(..length).unwrap_or_default();
        if !opening.starts_with("--") && !text.contains(['\n', '\\']) {
            found.push(Literal {
                text,
                line,
                before: script.get(..position).unwrap_or_default(),
            });
        }
        line += text.matches('\n').count();
        // The line break after a comment counts by itself.
        let closing = if closing == "\n" { 0 } else { closing.len() };
        position += opening.len() + length + closing;
    }
    found
}

/// Where a literal or comment ends: at the first `closing` without a backslash before it.
fn end_of(inside: &str, closing: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + inside.get(from..)?.find(closing)?;
        let escapes = inside.get(..at)?.bytes().rev();
        let escapes = escapes.take_while(|byte| *byte == b'\\').count();
        if closing.len() > 1 || closing == "\n" || escapes.is_multiple_of(2) {
            return Some(at);
        }
        from = at + closing.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_found_with_their_lines_and_functions() {
        let script = "-- 'no'\nhttpCall(\n  \"users\", 'a\\'b', [[long]])\n--[[ 'none'\n]]\n\
                      x = { cluster = 'one', mycluster = 'two' } filter_state.set 'three'";
        let found = literals(script);
        let texts: Vec<(&str, usize)> = found.iter().map(|one| (one.text, one.line)).collect();
        assert_eq!(
            texts,
            [
                ("users", 3),
                ("long", 3),
                ("one", 6),
                ("two", 6),
                ("three", 6)
            ]
        );
        assert!(found[0].is_argument_of("httpCall"));
        assert!(!found[1].is_argument_of("httpCall"));
        assert!(found[2].is_value_of("cluster") && !found[3].is_value_of("cluster"));
        assert!(found[4].is_argument_of("filter_state.set"));
    }
}
