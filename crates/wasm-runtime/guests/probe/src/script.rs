//! The script: what to do in which callback.
//!
//! ```text
//! # a comment; the harness reads those that begin with #@
//! on request_headers            a section: done each time that the callback is called
//! on request_body end           only when it is the stream's last call of this kind ("more": only when not)
//! on tick #2                    only the second time (counted for each context)
//!   call get_header_map_value 0 ":path"      a host function with its arguments
//!   size get_property "request\0time"        the same; of what comes back only the size is told
//!   quiet log 2 "x"                          the same; nothing is told
//!   let token = http_call …                  the same; what comes back is kept as $token
//!   raw proxy_log 2 -1 5                     the parameters of the Wasm function, as they are
//!   return 1                                 what the callback returns
//!   trap memory | trap stack | …             see `fault.rs`
//! ```
//!
//! Arguments are numbers, `"text"` with `\n \0 \" \\ \xNN`, `[ "name" "value" … ]` for a serialized map,
//! `fill:N` for N bytes, `$name` for what was kept, `$1` … for the callback's own arguments, `$stream` and
//! `$root` for contexts.

pub struct Section {
    pub callback: String,
    pub when: When,
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    Always,
    End,
    More,
    Time(u32),
}

pub struct Step {
    /// As it stands in the script, for the report.
    pub text: String,
    pub verb: String,
    pub arguments: Vec<Value>,
}

#[derive(Clone)]
pub enum Value {
    Word(String),
    Number(i64),
    Bytes(Vec<u8>),
    Variable(String),
}

/// Serializes a map as Proxy-Wasm has it.
pub fn serialize(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = (pairs.len() as u32).to_le_bytes().to_vec();
    for (name, value) in pairs {
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
    }
    for (name, value) in pairs {
        for part in [name, value] {
            bytes.extend(part);
            bytes.push(0);
        }
    }
    bytes
}

pub fn parse(text: &str) -> Result<Vec<Section>, String> {
    let mut sections: Vec<Section> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: &str| format!("line {}: {what}", index + 1);
        if let Some(head) = line.strip_prefix("on ") {
            let mut words = head.split_whitespace();
            let callback = words.next().unwrap_or_default().to_owned();
            let when = match words.next() {
                None => When::Always,
                Some("end") => When::End,
                Some("more") => When::More,
                Some(word) => {
                    let time = word
                        .strip_prefix('#')
                        .and_then(|number| number.parse().ok());
                    When::Time(time.ok_or_else(|| wrong("end, more or #N"))?)
                }
            };
            sections.push(Section {
                callback,
                when,
                steps: Vec::new(),
            });
            continue;
        }
        let mut arguments = values(line).map_err(|what| wrong(&what))?.into_iter();
        let Some(Value::Word(verb)) = arguments.next() else {
            return Err(wrong("a verb comes first"));
        };
        let section = sections
            .last_mut()
            .ok_or_else(|| wrong("outside of a section"))?;
        section.steps.push(Step {
            text: line.to_owned(),
            verb,
            arguments: arguments.collect(),
        });
    }
    Ok(sections)
}

fn values(line: &str) -> Result<Vec<Value>, String> {
    let bytes = line.as_bytes();
    let mut at = 0;
    let mut values = Vec::new();
    // The parts of the map that is being read.
    let mut map: Option<Vec<Vec<u8>>> = None;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b' ' => at += 1,
            b'"' => {
                let (text, next) = quoted(bytes, at + 1)?;
                at = next;
                match &mut map {
                    Some(parts) => parts.push(text),
                    None => values.push(Value::Bytes(text)),
                }
            }
            b'[' => {
                map = Some(Vec::new());
                at += 1;
            }
            b']' => {
                let parts = map.take().ok_or("] without [")?;
                if parts.len() % 2 == 1 {
                    return Err("a name without a value".to_owned());
                }
                let pairs: Vec<_> = parts
                    .chunks(2)
                    .map(|pair| (pair[0].clone(), pair[1].clone()))
                    .collect();
                values.push(Value::Bytes(serialize(&pairs)));
                at += 1;
            }
            _ => {
                let end = line[at..]
                    .find(' ')
                    .map_or(line.len(), |length| at + length);
                let word = &line[at..end];
                at = end;
                values.push(plain(word));
            }
        }
    }
    Ok(values)
}

fn plain(word: &str) -> Value {
    if let Some(name) = word.strip_prefix('$') {
        return Value::Variable(name.to_owned());
    }
    if let Some(count) = word
        .strip_prefix("fill:")
        .and_then(|count| count.parse().ok())
    {
        return Value::Bytes(vec![b'x'; count]);
    }
    if let Some(number) = word
        .strip_prefix("0x")
        .and_then(|digits| i64::from_str_radix(digits, 16).ok())
    {
        return Value::Number(number);
    }
    word.parse()
        .map_or_else(|_| Value::Word(word.to_owned()), Value::Number)
}

fn quoted(bytes: &[u8], mut at: usize) -> Result<(Vec<u8>, usize), String> {
    let mut text = Vec::new();
    loop {
        match bytes.get(at) {
            None => return Err("a text without an end".to_owned()),
            Some(b'"') => return Ok((text, at + 1)),
            Some(b'\\') => {
                let escape = bytes.get(at + 1).copied();
                at += 2;
                text.push(match escape {
                    Some(b'n') => b'\n',
                    Some(b'0') => 0,
                    Some(b'x') => {
                        let digits = bytes
                            .get(at..at + 2)
                            .and_then(|digits| core::str::from_utf8(digits).ok());
                        at += 2;
                        digits
                            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                            .ok_or("\\x wants two digits")?
                    }
                    Some(byte) => byte,
                    None => return Err("a text without an end".to_owned()),
                });
            }
            Some(byte) => {
                text.push(*byte);
                at += 1;
            }
        }
    }
}
