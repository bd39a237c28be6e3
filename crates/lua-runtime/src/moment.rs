//! Moments as text: milliseconds since the Unix epoch to and from RFC 3339 and HTTP's dates.

use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The form of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `2026-01-31T12:00:00.25Z`.
    Rfc3339,
    /// `Sat, 31 Jan 2026 12:00:00 GMT`.
    Http,
}

/// Appends a moment to `out`; false: it is before 1970 or after 9999.
pub(crate) fn format(milliseconds: f64, form: Form, out: &mut Vec<u8>) -> bool {
    const END: f64 = 253_402_300_800_000.0;
    if !(0.0..END).contains(&milliseconds) {
        return false;
    }
    let milliseconds = milliseconds as u64;
    match form {
        Form::Rfc3339 => {
            let nanoseconds = i128::from(milliseconds) * 1_000_000;
            OffsetDateTime::from_unix_timestamp_nanos(nanoseconds)
                .is_ok_and(|moment| moment.format_into(out, &Rfc3339).is_ok())
        }
        Form::Http => {
            let moment = UNIX_EPOCH + Duration::from_millis(milliseconds);
            write!(out, "{}", httpdate::HttpDate::from(moment)).is_ok()
        }
    }
}

/// The moment that a text names. HTTP's dates may be of each form that RFC 9110 names.
pub(crate) fn parse(text: &str, form: Form) -> Option<f64> {
    match form {
        Form::Rfc3339 => {
            let moment = OffsetDateTime::parse(text, &Rfc3339).ok()?;
            Some((moment.unix_timestamp_nanos() / 1_000_000) as f64)
        }
        Form::Http => {
            let moment = httpdate::parse_http_date(text).ok()?;
            let since = moment.duration_since(UNIX_EPOCH).ok()?;
            Some(since.as_millis() as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(milliseconds: f64, form: Form) -> Option<String> {
        let mut out = Vec::new();
        format(milliseconds, form, &mut out).then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn moments_go_both_ways() {
        for (moment, form, expected) in [
            (0.0, Form::Rfc3339, "1970-01-01T00:00:00Z"),
            (951_782_400_250.0, Form::Rfc3339, "2000-02-29T00:00:00.25Z"),
            (0.0, Form::Http, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (
                951_782_400_000.0,
                Form::Http,
                "Tue, 29 Feb 2000 00:00:00 GMT",
            ),
        ] {
            assert_eq!(text(moment, form).as_deref(), Some(expected));
            assert_eq!(parse(expected, form), Some(moment));
        }
        assert_eq!(
            parse("2000-02-29T02:00:00+02:00", Form::Rfc3339),
            Some(951_782_400_000.0)
        );
        assert_eq!(
            parse("Tuesday, 29-Feb-00 00:00:00 GMT", Form::Http),
            Some(951_782_400_000.0)
        );
    }

    #[test]
    fn what_is_no_moment_is_none() {
        for moment in [-1.0, f64::NAN, f64::INFINITY, 253_402_300_800_000.0] {
            assert_eq!(text(moment, Form::Rfc3339), None, "{moment}");
            assert_eq!(text(moment, Form::Http), None, "{moment}");
        }
        assert!(text(253_402_300_799_999.0, Form::Http).is_some());
        assert_eq!(parse("yesterday", Form::Rfc3339), None);
        assert_eq!(parse("2023-02-29T00:00:00Z", Form::Rfc3339), None);
        assert_eq!(parse("yesterday", Form::Http), None);
    }
}
