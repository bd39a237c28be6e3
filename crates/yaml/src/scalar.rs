//! Plain scalars by YAML 1.2's core schema (section 10.3.2).

use crate::node::Value;

/// What a plain scalar is; the error is a sentence.
pub(crate) fn resolve(text: &str) -> Result<Value, String> {
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Err(not_finite(text)),
        _ if is_infinity(text) => return Err(not_finite(text)),
        _ => match (integer(text), float(text)) {
            (Some(value), _) if is_held(value) => Value::Integer(value),
            (None, Some(value)) if value.is_finite() => Value::Float(value),
            (None, None) => Value::String(text.to_owned()),
            _ => return Err(format!("the number {text} is too large")),
        },
    })
}

fn is_held(value: i128) -> bool {
    (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&value)
}

fn not_finite(text: &str) -> String {
    format!("`{text}` is not a number that a configuration can hold")
}

fn is_infinity(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    matches!(unsigned, ".inf" | ".Inf" | ".INF")
}

/// A whole number, `i128::MAX` for any that is larger; none if it is not written as one.
fn integer(text: &str) -> Option<i128> {
    let parse = |digits: &str, radix| i128::from_str_radix(digits, radix).unwrap_or(i128::MAX);
    let all = |digits: &str, radix| {
        !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix))
    };
    if let Some(digits) = text.strip_prefix("0o") {
        return all(digits, 8).then(|| parse(digits, 8));
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return all(digits, 16).then(|| parse(digits, 16));
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    all(unsigned, 10).then(|| parse(text, 10))
}

/// `[-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`
fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let digits = |text: &str| text.chars().all(|digit| digit.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_is_right = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !exponent.is_empty() && digits(exponent)
    });
    let right = digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent_is_right;
    if right { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::resolve;
    use crate::node::Value;

    #[test]
    fn core_schema() {
        let text = |text: &str| Ok(Value::String(text.to_owned()));
        for word in [
            "off", "no", "yes", "on", "y", "1s", "1.2.3", "1e", "-", ".", "+", "0xg", "1_0", "0o8",
            "nan",
        ] {
            assert_eq!(resolve(word), text(word), "{word}");
        }
        for (word, value) in [
            ("0", 0),
            ("-7", -7),
            ("+7", 7),
            ("007", 7),
            ("0o17", 15),
            ("0xfF", 255),
            ("18446744073709551615", i128::from(u64::MAX)),
        ] {
            assert_eq!(resolve(word), Ok(Value::Integer(value)), "{word}");
        }
        for (word, value) in [
            ("1.", 1.0),
            (".5", 0.5),
            ("-1.5e3", -1500.0),
            ("1e3", 1000.0),
            ("+1.5E-1", 0.15),
        ] {
            assert_eq!(resolve(word), Ok(Value::Float(value)), "{word}");
        }
        for word in [".inf", "-.INF", ".nan", "18446744073709551616", "1e999"] {
            assert!(resolve(word).is_err(), "{word}");
        }
        assert_eq!(resolve("~"), Ok(Value::Null));
        assert_eq!(resolve("True"), Ok(Value::Bool(true)));
    }
}
