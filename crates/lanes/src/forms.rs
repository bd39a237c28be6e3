//! Entry rules from the document that the module gets.

use outrider_plugin_formats::{LaneCondition, LaneGroup, LanePart, LaneTest};
use regex::bytes::{Regex, RegexBuilder};

use crate::rules::{Condition, Part, Rule, Rules, Test};

/// Most bytes of a compiled regular expression.
const REGEX_SIZE: usize = 1 << 20;

/// Entry rule with an expression that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("lanes {group}, lane {lane}: {source}")]
pub struct RulesError {
    group: String,
    lane: String,
    source: regex::Error,
}

impl Rules {
    /// Returns the entry rules of a group.
    pub fn of(group: &LaneGroup) -> Result<Self, RulesError> {
        let rules = group.rules.iter().map(|rule| {
            let condition = condition(&rule.when).map_err(|source| RulesError {
                group: group.name.clone(),
                lane: rule.lane.clone(),
                source,
            })?;
            Ok(Rule {
                lane: rule.lane.clone(),
                condition,
                priority: rule.priority,
                weight: rule.weight,
            })
        });
        let sticky = group.sticky.iter().map(part).collect();
        Ok(Self::new(
            &group.name,
            sticky,
            rules.collect::<Result<_, RulesError>>()?,
        ))
    }
}

fn condition(form: &LaneCondition) -> Result<Condition, regex::Error> {
    let all = |forms: &[LaneCondition]| forms.iter().map(condition).collect::<Result<Vec<_>, _>>();
    Ok(match form {
        LaneCondition::All(forms) => Condition::All(all(forms)?),
        LaneCondition::Any(forms) => Condition::Any(all(forms)?),
        LaneCondition::Not(form) => Condition::Not(Box::new(condition(form)?)),
        LaneCondition::Part(place, test) => Condition::Part(part(place), self::test(test)?),
    })
}

fn part(form: &LanePart) -> Part {
    match form {
        LanePart::Header(name) => Part::Header(name.clone()),
        LanePart::Query(name) => Part::Query(name.clone()),
        LanePart::Cookie(name) => Part::Cookie(name.clone()),
        LanePart::Path => Part::Path,
    }
}

fn test(form: &LaneTest) -> Result<Test, regex::Error> {
    let bytes = |text: &String| text.clone().into_bytes();
    Ok(match form {
        LaneTest::Present => Test::Present,
        LaneTest::Exact(text) => Test::Exact(bytes(text)),
        LaneTest::Prefix(text) => Test::Prefix(bytes(text)),
        LaneTest::Suffix(text) => Test::Suffix(bytes(text)),
        LaneTest::Contains(text) => Test::Contains(bytes(text)),
        LaneTest::Regex(text) => Test::Regex(whole(text)?),
    })
}

/// The expression for whole values: an alternative that matches a part must not hide one that matches all.
fn whole(expression: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&format!("^(?:{expression})$"))
        .size_limit(REGEX_SIZE)
        .build()
}
