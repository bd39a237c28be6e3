//! An explanation for people.

use std::fmt;

use outrider_plugin_formats::{Allow, AllowedNames, FailureAction, FailurePolicy};

use super::{Explanation, TurnedOff};
use crate::plan::{Action, Limit, Mirror, Place};

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "request  {} {} {}", self.method, self.host, self.path)?;
        for note in &self.notes {
            writeln!(f, "note     {note}")?;
        }
        let (Some(project), Some(host)) = (&self.project, &self.matched_host) else {
            writeln!(f, "project  none has this host: {}", self.unmatched())?;
            return self.write_chain(f);
        };
        writeln!(f, "project  {project} (host {host})")?;
        for passed in &self.passed_over {
            writeln!(f, "         not route {}: {}", passed.route, passed.why)?;
        }
        let (Some(route), Some(action)) = (&self.route, &self.action) else {
            writeln!(f, "route    none matches: {}", self.unmatched())?;
            return self.write_chain(f);
        };
        writeln!(f, "route    {route}")?;
        writeln!(f, "action   {}", Words(action))?;
        self.write_chain(f)
    }
}

impl Explanation {
    /// Who answers a request without a route.
    fn unmatched(&self) -> &'static str {
        if self.chain.is_empty() {
            "Envoy answers 404"
        } else {
            "Envoy answers 404, unless one of these plugins answers"
        }
    }

    fn write_chain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.chain.is_empty() {
            writeln!(f, "chain    no plugin")?;
        } else {
            self.write_links(f)?;
        }
        for TurnedOff { plugin, by } in &self.off {
            writeln!(
                f,
                "off      {plugin}, by {}, {}:{}",
                by.scope, by.file, by.line
            )?;
        }
        Ok(())
    }

    fn write_links(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "chain    (responses pass it in reverse)")?;
        for (index, link) in self.chain.iter().enumerate() {
            let by = &link.used_by;
            let group = format!("{:?}", link.group).to_lowercase();
            let runtime = format!("{:?}", link.runtime).to_lowercase();
            writeln!(
                f,
                "  {}. {} ({runtime}, {group}, priority {}) used by {}, {}:{}",
                index + 1,
                link.plugin,
                link.priority,
                by.scope,
                by.file,
                by.line
            )?;
            let widest = link
                .settings
                .iter()
                .map(|setting| {
                    setting.key.chars().count() + setting.value.to_string().chars().count()
                })
                .max()
                .unwrap_or_default()
                .min(60);
            for setting in &link.settings {
                let left = if setting.key.is_empty() {
                    setting.value.to_string()
                } else {
                    format!("{}: {}", setting.key, setting.value)
                };
                let by = &setting.set_by;
                writeln!(
                    f,
                    "       {left:<width$}  {}, {}:{}",
                    by.scope,
                    by.file,
                    by.line,
                    width = widest + 2
                )?;
            }
            writeln!(f, "       fails   {}", FailureWords(&link.failure_policy))?;
            if let Some(words) = allowed(&link.allow) {
                writeln!(f, "       may     {words}")?;
            }
            write_limits(f, &link.limits)?;
            if let Some(rate) = link.log_rate {
                writeln!(f, "       logs    at most {rate} bytes a second")?;
            }
        }
        Ok(())
    }
}

/// Writes the budgets of a plugin, and other limits that are not the default.
fn write_limits(f: &mut fmt::Formatter<'_>, limits: &[Limit]) -> fmt::Result {
    let shown = limits
        .iter()
        .filter(|limit| limit.set_by.is_some() || limit.key.starts_with("budgets."));
    let shown: Vec<String> = shown
        .map(|Limit { key, value, set_by }| match set_by {
            Some(Place { file, line }) => format!("{key}: {value} ({file}:{line})"),
            None => format!("{key}: {value} (default)"),
        })
        .collect();
    if shown.is_empty() {
        return Ok(());
    }
    writeln!(f, "       limits  {}", shown.join(", "))
}

/// What a stream gets when a plugin fails on it: `closed, with status 500; open for share, time`.
struct FailureWords<'a>(&'a FailurePolicy);

impl fmt::Display for FailureWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = self.0;
        let word = |action| match action {
            FailureAction::Open => "open".to_owned(),
            FailureAction::Closed => format!("closed, with status {}", policy.status),
        };
        write!(f, "{}", word(policy.default))?;
        let others: Vec<String> = policy
            .causes
            .iter()
            .filter(|(_, action)| **action != policy.default)
            .map(|(cause, _)| format!("{cause:?}").to_lowercase())
            .collect();
        if others.is_empty() {
            return Ok(());
        }
        let other = match policy.default {
            FailureAction::Open => FailureAction::Closed,
            FailureAction::Closed => FailureAction::Open,
        };
        write!(f, "; for {}: {}", others.join(", "), word(other))
    }
}

/// What a plugin's permissions let it do, or `None` if it has none.
fn allowed(allow: &Allow) -> Option<String> {
    if *allow == Allow::all() {
        return Some("do everything (allow: all)".to_owned());
    }
    let listed = |names: &AllowedNames, what: &str| match names {
        AllowedNames::All(_) => Some(format!("{what} (all)")),
        AllowedNames::Listed(names) if names.is_empty() => None,
        AllowedNames::Listed(names) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            Some(format!("{what} {}", names.join(", ")))
        }
    };
    let words: Vec<String> = [
        listed(&allow.upstreams, "call upstreams"),
        (allow.leave_project).then(|| "leave its project".to_owned()),
        (allow.override_host).then(|| "choose the endpoint".to_owned()),
        listed(&allow.metadata, "write metadata of"),
        (allow.router_headers).then(|| "set headers of the router".to_owned()),
        listed(&allow.typed_filter_state, "set typed filter state"),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!words.is_empty()).then(|| words.join("; "))
}

struct Words<'a>(&'a Action);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Action::Forward(forward) => {
                match (forward.to.as_slice(), &forward.fallback) {
                    ([(only, _)], None) => write!(f, "to {only}")?,
                    ([(only, _)], Some(fallback)) => {
                        write!(
                            f,
                            "to {only}, or to {fallback} while none of its machines is healthy"
                        )?;
                    }
                    (several, _) => {
                        let list: Vec<String> = several
                            .iter()
                            .map(|(name, weight)| format!("{name} (weight {weight})"))
                            .collect();
                        write!(f, "to {}", list.join(", "))?;
                    }
                }
                match &forward.mirror {
                    Some(mirror) if mirror.percent == 100 => {
                        write!(f, ", and a copy to {}", mirror.upstream)
                    }
                    Some(mirror) => {
                        let Mirror {
                            upstream, percent, ..
                        } = mirror;
                        write!(f, ", and a copy of {percent} % to {upstream}")
                    }
                    None => Ok(()),
                }
            }
            Action::Redirect(redirect) => write!(f, "redirect with status {}", redirect.status),
            Action::Respond(respond) => write!(f, "respond with status {}", respond.status),
        }
    }
}
