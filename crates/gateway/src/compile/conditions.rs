//! A route's conditions on headers, query parameters and cookies: three forms, one meaning.

use outrider_yaml::{Field, Location};

use super::routes::exactly_one;
use super::{Context, Origin};
use crate::model;
use crate::plan::{Condition, ValueMatch};

/// What the three kinds of conditions have in common.
pub(super) trait ConditionForm {
    fn name(&self) -> (&Field<impl AsRef<str>>, Option<String>);
    fn value(&self) -> Option<ValueMatch>;
    fn given(&self) -> [(&'static str, Option<Location>); 6];
    fn invert(&self) -> bool;
}

macro_rules! condition_form {
    ($($form:ident: $invert:expr;)*) => {
        $(impl ConditionForm for model::$form {
            fn name(&self) -> (&Field<impl AsRef<str>>, Option<String>) {
                (&self.name, self.name.value().map(|name| name.0.clone()))
            }

            fn value(&self) -> Option<ValueMatch> {
                let text = |field: &Field<model::Text>| field.value().map(|text| text.0.clone());
                None.or_else(|| self.exact.value().cloned().map(ValueMatch::Exact))
                    .or_else(|| text(&self.prefix).map(ValueMatch::Prefix))
                    .or_else(|| text(&self.suffix).map(ValueMatch::Suffix))
                    .or_else(|| text(&self.contains).map(ValueMatch::Contains))
                    .or_else(|| self.regex.value().map(|regex| ValueMatch::Regex(regex.0.clone())))
                    .or_else(|| self.present.value().copied().map(ValueMatch::Present))
            }

            fn given(&self) -> [(&'static str, Option<Location>); 6] {
                [
                    ("exact", self.exact.location()),
                    ("prefix", self.prefix.location()),
                    ("suffix", self.suffix.location()),
                    ("contains", self.contains.location()),
                    ("regex", self.regex.location()),
                    ("present", self.present.location()),
                ]
            }

            fn invert(&self) -> bool {
                let invert: fn(&Self) -> bool = $invert;
                invert(self)
            }
        })*
    };
}

condition_form! {
    HeaderCondition: |form| form.invert.value() == Some(&true);
    QueryCondition: |_| false;
    CookieCondition: |form| form.invert.value() == Some(&true);
}

impl AsRef<str> for model::HeaderName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for model::Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

pub(super) fn conditions<F: ConditionForm>(
    context: &mut Context<'_>,
    origin: &Origin,
    kind: &str,
    field: &Field<Vec<Field<F>>>,
) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for form in field.value().into_iter().flatten().filter_map(Field::get) {
        let what = format!("the condition on a {kind}");
        let (field, name) = form.value.name();
        context.required(origin, form.location, &what, "name", field);
        exactly_one(context, origin, form.location, &what, &form.value.given());
        if let (Some(name), Some(value)) = (name, form.value.value()) {
            // Not there, inverted, is there.
            let (value, invert) = match (value, form.value.invert()) {
                (ValueMatch::Present(present), invert) => {
                    (ValueMatch::Present(present != invert), false)
                }
                other => other,
            };
            conditions.push(Condition {
                name,
                value,
                invert,
            });
        }
    }
    conditions
}
