//! Times as Envoy's `%START_TIME%` writes them, in UTC: `strftime` with fractions of a second.

use super::FormatProblem;

const SECOND: i64 = 1_000_000_000;

/// A part of a format of times.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(Box<[u8]>),
    Year,
    Month,
    Day,
    DaySpaces,
    Hour,
    Minute,
    Second,
    /// Digits of the fraction.
    Fraction(usize),
    DayOfYear,
    Weekday {
        long: bool,
    },
    MonthName {
        long: bool,
    },
    YearOfCentury,
    /// Seconds since 1970.
    Epoch,
}

/// A parsed format of times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TimeFormat(Vec<Part>);

/// The form of `%START_TIME%` without parameters.
const DEFAULT: &str = "%Y-%m-%dT%H:%M:%E3SZ";

const WEEKDAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl TimeFormat {
    /// Parses a format; an empty one is the default.
    pub(crate) fn parse(text: &str) -> Result<Self, FormatProblem> {
        let text = if text.is_empty() { DEFAULT } else { text };
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            if byte != b'%' {
                literal.push(byte);
                rest = after;
                continue;
            }
            let (found, after) = match after {
                [b'E', digit @ b'1'..=b'9', b'S', after @ ..] => (
                    vec![
                        Part::Second,
                        Part::Literal(b".".as_slice().into()),
                        Part::Fraction(usize::from(digit - b'0')),
                    ],
                    after,
                ),
                [digit @ b'1'..=b'9', b'f', after @ ..] => {
                    (vec![Part::Fraction(usize::from(digit - b'0'))], after)
                }
                [b'f', after @ ..] => (vec![Part::Fraction(9)], after),
                [b'T', after @ ..] => (time_of_day(), after),
                [b'F', after @ ..] => (date(), after),
                [letter, after @ ..] => {
                    (vec![single(*letter).ok_or_else(|| unknown(text))?], after)
                }
                [] => return Err(unknown(text)),
            };
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal).into()));
            }
            parts.extend(found);
            rest = after;
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal.into()));
        }
        Ok(Self(parts))
    }

    /// Appends a time, given in nanoseconds since 1970.
    pub(crate) fn write(&self, into: &mut Vec<u8>, nanoseconds: i64) {
        let seconds = nanoseconds.div_euclid(SECOND);
        let fraction = nanoseconds.rem_euclid(SECOND);
        let days = seconds.div_euclid(86_400);
        let of_day = seconds.rem_euclid(86_400);
        let (year, month, day) = civil(days);
        for part in &self.0 {
            match part {
                Part::Literal(bytes) => into.extend_from_slice(bytes),
                Part::Year => digits(into, year, 4),
                Part::YearOfCentury => digits(into, year.rem_euclid(100), 2),
                Part::Month => digits(into, month, 2),
                Part::DaySpaces if day < 10 => {
                    into.push(b' ');
                    digits(into, day, 1);
                }
                Part::Day | Part::DaySpaces => digits(into, day, 2),
                Part::Hour => digits(into, of_day / 3600, 2),
                Part::Minute => digits(into, of_day / 60 % 60, 2),
                Part::Second => digits(into, of_day % 60, 2),
                Part::Fraction(count) => {
                    let scale = 10_i64.pow(9 - *count as u32);
                    digits(into, fraction / scale, *count);
                }
                Part::DayOfYear => digits(into, days - days_from_civil(year, 1, 1) + 1, 3),
                Part::Weekday { long } => name(into, &WEEKDAYS, days.rem_euclid(7), *long),
                Part::MonthName { long } => name(into, &MONTHS, month - 1, *long),
                Part::Epoch => digits(into, seconds, 1),
            }
        }
    }
}

fn unknown(text: &str) -> FormatProblem {
    FormatProblem {
        message: format!("the format of times `{text}` has a conversion that telemetry does not write"),
        mend: "use %Y %y %m %d %e %j %H %M %S %T %F %a %A %b %B %Z %z %s %f, %1f to %9f, or %E1S to %E9S"
            .to_owned(),
    }
}

fn literal(text: &str) -> Part {
    Part::Literal(text.as_bytes().into())
}

fn single(letter: u8) -> Option<Part> {
    Some(match letter {
        b'Y' => Part::Year,
        b'y' => Part::YearOfCentury,
        b'm' => Part::Month,
        b'd' => Part::Day,
        b'e' => Part::DaySpaces,
        b'j' => Part::DayOfYear,
        b'H' => Part::Hour,
        b'M' => Part::Minute,
        b'S' => Part::Second,
        b'a' => Part::Weekday { long: false },
        b'A' => Part::Weekday { long: true },
        b'b' => Part::MonthName { long: false },
        b'B' => Part::MonthName { long: true },
        b's' => Part::Epoch,
        b'Z' => literal("UTC"),
        b'z' => literal("+0000"),
        b'%' => literal("%"),
        _ => return None,
    })
}

fn time_of_day() -> Vec<Part> {
    vec![
        Part::Hour,
        literal(":"),
        Part::Minute,
        literal(":"),
        Part::Second,
    ]
}

fn date() -> Vec<Part> {
    vec![
        Part::Year,
        literal("-"),
        Part::Month,
        literal("-"),
        Part::Day,
    ]
}

fn name(into: &mut Vec<u8>, names: &[&str], place: i64, long: bool) {
    let name = names.get(place as usize).copied().unwrap_or_default();
    let shown = if long { name.len() } else { 3 };
    into.extend(name.bytes().take(shown));
}

/// Appends a number with at least `width` digits.
pub(crate) fn digits(into: &mut Vec<u8>, number: i64, width: usize) {
    let mut buffer = [0_u8; 20];
    let mut rest = number.unsigned_abs();
    let mut used = 0;
    for slot in buffer.iter_mut().rev() {
        if rest == 0 && used >= width {
            break;
        }
        *slot = b'0' + (rest % 10) as u8;
        rest /= 10;
        used += 1;
    }
    if number < 0 {
        into.push(b'-');
    }
    into.extend(buffer.iter().skip(buffer.len() - used));
}

/// Year, month and day of a number of days since 1970, by the proleptic Gregorian calendar. Years begin in March here, so
/// that the day that leap years add is their last.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The inverse of [`civil`].
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let shifted_month = (month + 9) % 12;
    let of_year = (153 * shifted_month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::{SECOND, TimeFormat, civil, days_from_civil};

    fn written(format: &str, nanoseconds: i64) -> String {
        let mut into = Vec::new();
        TimeFormat::parse(format)
            .unwrap()
            .write(&mut into, nanoseconds);
        String::from_utf8(into).unwrap()
    }

    #[test]
    fn times_are_written_as_date_writes_them() {
        // `date -u -d @1709210096`: a leap day.
        let time = 1_709_210_096 * SECOND + 7_089_012;
        assert_eq!(written("", time), "2024-02-29T12:34:56.007Z");
        assert_eq!(written("%F %T.%6f", time), "2024-02-29 12:34:56.007089");
        assert_eq!(written("%s.%3f", time), "1709210096.007");
        assert_eq!(
            written("%a %A %b %B %e %j %y %Z %z%%", time),
            "Thu Thursday Feb February 29 060 24 UTC +0000%"
        );
        assert_eq!(written("%f", time), "007089012");
        assert_eq!(written("%Y", -SECOND), "1969");
        assert_eq!(written("%e", 0), " 1");
    }

    #[test]
    fn unknown_conversion_is_refused() {
        for format in ["%Q", "%", "%E", "%0f"] {
            assert!(TimeFormat::parse(format).is_err(), "{format}");
        }
    }

    #[test]
    fn days_and_dates_are_inverse() {
        for days in (-1_000_000..1_000_000).step_by(17) {
            let (year, month, day) = civil(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }
    }
}
