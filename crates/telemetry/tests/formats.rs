//! What records become: text and JSON, from a stream whose values are known.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use outrider_plugin_formats::{AccessLogFilter, StatusRange};
use outrider_telemetry::format::{DEFAULT_TEXT, default_json};
use outrider_telemetry::{AccessLog, Number};
use serde_json::{Value, json};

use support::{Event, json_log, text_log};

fn line(log: &outrider_plugin_formats::AccessLog, event: &mut Event) -> String {
    let log = AccessLog::compile(log).unwrap();
    let mut record = Vec::new();
    log.encode(&mut record, event);
    let mut line = Vec::new();
    assert!(log.write_line(&mut line, &record));
    // A record of another access log is seen as such.
    record.push(0);
    assert!(!log.write_line(&mut Vec::new(), &record));
    String::from_utf8(line).unwrap()
}

#[test]
fn text_has_the_values_of_the_stream() {
    let text = |format: &str| line(&text_log("log", format), &mut Event::default());
    assert_eq!(
        text(DEFAULT_TEXT),
        "[2024-02-29T12:34:56.007Z] \"GET /cart?item=17 HTTP/1.1\" 200 - via_upstream 0 512 12ms \
         \"shop.example.com\" \"curl/8.5.0\" 7c9e6679-7425-40de-944b-e07fc1f90ae7 203.0.113.7 shop 10.0.0.7:8080\n"
    );
    assert_eq!(text("%REQ(X-NONE?USER-AGENT):4%|%REQ(X-NONE)%"), "curl|-");
    assert_eq!(text("%RESPONSE_TX_DURATION% %REQUEST_TX_DURATION%"), "7 -");
    assert_eq!(
        text("%DOWNSTREAM_REMOTE_ADDRESS% %DOWNSTREAM_LOCAL_PORT%"),
        "203.0.113.7:41234 41234"
    );
    assert_eq!(
        text(
            "%DYNAMIC_METADATA(shop:tier:name)% %DYNAMIC_METADATA(shop:items)% %DYNAMIC_METADATA(shop:ratio)% \
              %DYNAMIC_METADATA(shop:guest)% %DYNAMIC_METADATA(shop:none)%"
        ),
        "gold 3 0.25 false -"
    );
    assert_eq!(text("100 %%"), "100 %");
    assert_eq!(text("%ACCESS_LOG_TYPE%"), "DownstreamEnd");
}

#[test]
fn v6_address_has_brackets_with_its_port() {
    let mut event = Event {
        address: (b"2001:db8::7".to_vec(), 443),
        ..Event::default()
    };
    let format = "%DOWNSTREAM_REMOTE_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%";
    let log = text_log("log", format);
    assert_eq!(line(&log, &mut event), "[2001:db8::7]:443 2001:db8::7");
}

#[test]
fn json_has_types_and_sorted_keys() {
    let log = json_log(
        "log",
        json!({
            "status": "%RESPONSE_CODE%",
            "path": "%REQ(:PATH)%",
            "mixed": "%RESPONSE_CODE% in %DURATION%ms by %REQ(X-NONE)%",
            "none": "%REQ(X-NONE)%",
            "flags": "%RESPONSE_FLAGS%",
            "fixed": [1, true, null, "text"],
            "nested": { "b": "%DYNAMIC_METADATA(shop:guest)%", "a": "%DYNAMIC_METADATA(shop:items)%" },
        }),
    );
    assert_eq!(
        line(&log, &mut Event::default()),
        "{\"fixed\":[1,true,null,\"text\"],\"flags\":\"-\",\"mixed\":\"200 in 12ms by -\",\
         \"nested\":{\"a\":3,\"b\":false},\"none\":null,\"path\":\"/cart?item=17\",\"status\":200}\n"
    );
    let fields: Value = serde_json::from_str(&line(
        &json_log("log", default_json()),
        &mut Event::default(),
    ))
    .unwrap();
    assert_eq!(fields.as_object().unwrap().len(), 19);
}

#[test]
fn hostile_values_make_valid_json_and_truncation_is_marked() {
    let log = json_log(
        "log",
        json!({ "agent": "%REQ(USER-AGENT)%", "mixed": "a %REQ(USER-AGENT)%" }),
    );
    let written = |value: &[u8]| -> Value {
        let mut event = Event::default().with_header("user-agent", value);
        serde_json::from_str(&line(&log, &mut event)).unwrap()
    };
    let odd = b"a\"b\\c\x00\x1f\x7f\xff\xc3(\xe2\x82";
    let shown = String::from_utf8_lossy(odd).into_owned();
    assert_eq!(
        written(odd),
        json!({ "agent": shown, "mixed": format!("a {shown}") })
    );
    // The cut is in the middle of a character of two bytes.
    let long = "x".to_owned() + &"ü".repeat(30_000);
    let agent = written(long.as_bytes());
    let agent = agent["agent"].as_str().unwrap();
    let kept = agent.strip_suffix("...[cut, 60001 bytes]").unwrap();
    assert_eq!(kept, "x".to_owned() + &"ü".repeat(2047));
    // Bytes that are no characters are cut where they are.
    let agent = written(&[0xff; 5000]);
    let kept = agent["agent"]
        .as_str()
        .unwrap()
        .strip_suffix("...[cut, 5000 bytes]");
    assert_eq!(kept.unwrap(), "\u{fffd}".repeat(4096));
}

#[test]
fn filters_take_the_streams_that_they_name() {
    let takes = |only: AccessLogFilter, event: &mut Event| {
        let log = outrider_plugin_formats::AccessLog {
            only: Some(only),
            ..text_log("log", "\n")
        };
        AccessLog::compile(&log).unwrap().takes(event)
    };
    let errors = || AccessLogFilter {
        errors: true,
        ..AccessLogFilter::default()
    };
    let slow = || AccessLogFilter {
        slower_than_ms: Some(12),
        ..AccessLogFilter::default()
    };
    let not_found = || AccessLogFilter {
        status: vec![StatusRange { from: 404, to: 404 }],
        ..AccessLogFilter::default()
    };
    let fine = Event::default();
    assert!(!takes(errors(), &mut fine.clone()));
    assert!(takes(
        errors(),
        &mut fine.clone().with_number(Number::ResponseCode, 503)
    ));
    assert!(takes(
        errors(),
        &mut fine.clone().with_number(Number::ResponseCode, 0)
    ));
    assert!(takes(
        errors(),
        &mut fine.clone().with_number(Number::ResponseFlags, 1 << 14)
    ));
    assert!(takes(slow(), &mut fine.clone()));
    assert!(!takes(
        slow(),
        &mut fine.clone().with_number(Number::Complete, 11_999_999)
    ));
    assert!(takes(
        not_found(),
        &mut fine.clone().with_number(Number::ResponseCode, 404)
    ));
    assert!(!takes(not_found(), &mut fine.clone()));
}

#[test]
fn sampling_takes_about_its_part() {
    let sampled = outrider_plugin_formats::AccessLog {
        sample: Some(250_000),
        ..text_log("log", "\n")
    };
    let log = AccessLog::compile(&sampled).unwrap();
    let mut event = Event::default();
    let taken = (0..40_000).filter(|_| log.takes(&mut event)).count();
    assert!((9_000..11_000).contains(&taken), "{taken} of 40000");
    let none = outrider_plugin_formats::AccessLog {
        sample: Some(0),
        ..sampled
    };
    let log = AccessLog::compile(&none).unwrap();
    assert!((0..1000).all(|_| !log.takes(&mut event)));
}
