//! The foreign functions `verify_signature` and `sign`, through a guest.

use std::fmt::Write as _;

use super::fake::probe;
use crate::proto::put_bytes;

const PUBLIC: &str = include_str!("../../../signatures/vectors/keys/p256.pem");
const PRIVATE: &str = include_str!("../../../signatures/vectors/private/p256.pem");
const OTHER: &str = include_str!("../../../signatures/vectors/private/p521.pem");
const WEAK: &str = include_str!("../../../signatures/vectors/private/rsa1024.pem");

fn message(fields: &[(u64, &str)]) -> Vec<u8> {
    let mut message = Vec::new();
    for (number, value) in fields {
        put_bytes(&mut message, *number, value.as_bytes());
    }
    message
}

/// Bytes in a guest's text.
fn data(at: usize, bytes: &[u8]) -> String {
    let mut text = format!("(data (i32.const {at}) \"");
    for byte in bytes {
        write!(text, "\\{byte:02x}").unwrap();
    }
    text + "\")"
}

/// What a guest is answered that calls `function` with a message.
fn answered(function: &str, message: &[u8]) -> Vec<String> {
    let guest = format!(
        r#"{} {}
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (call $say_number (call $foreign (i32.const 100) (i32.const {}) (i32.const 1000) (i32.const {})
            (i32.const 0) (i32.const 4)))
          (call $say_given) (i32.const 0))"#,
        data(100, function.as_bytes()),
        data(1000, message),
        function.len(),
        message.len()
    );
    probe(&guest).said()
}

#[test]
fn a_signature_that_was_made_is_found_right() {
    // The result of `sign` becomes the signature in the arguments of `verify_signature`: what follows the field that
    // says that it was made, under another number.
    let sign = message(&[(1, "SHA512"), (3, "order=42"), (4, PRIVATE)]);
    for (text, expected) in [
        ("order=42", "\u{8}\u{1}"),
        ("order=43", "\u{12}&Failed to verify digest. Error code: 0"),
    ] {
        let verify = message(&[(1, "sha512"), (4, text), (5, PUBLIC)]);
        let end = 3000 + verify.len();
        let probe = probe(&format!(
            r#"(data (i32.const 100) "sign") (data (i32.const 110) "verify_signature") {} {}
            (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
              (call $say_number (call $foreign (i32.const 100) (i32.const 4) (i32.const 1000)
                (i32.const {}) (i32.const 0) (i32.const 4)))
              (call $say (i32.load (i32.const 0)) (i32.const 2))
              (memory.copy (i32.const {end}) (i32.add (i32.load (i32.const 0)) (i32.const 2))
                (i32.sub (i32.load (i32.const 4)) (i32.const 2)))
              (i32.store8 (i32.const {end}) (i32.const 0x1a))
              (call $say_number (call $foreign (i32.const 110) (i32.const 16) (i32.const 3000)
                (i32.add (i32.const {}) (i32.load (i32.const 4))) (i32.const 0) (i32.const 4)))
              (call $say_given) (i32.const 0))"#,
            data(1000, &sign),
            data(3000, &verify),
            sign.len(),
            verify.len() - 2
        ));
        assert_eq!(probe.said(), ["00", "\u{8}\u{1}", "00", expected]);
    }
}

#[test]
fn what_cannot_be_done_is_said_in_the_result() {
    let told = |answer: Vec<String>| {
        assert_eq!(answer[0], "00");
        // A field's number and length come before its text.
        answer[1].get(2..).unwrap_or_default().to_owned()
    };
    let sign = |hash, key| {
        let message = message(&[(1, hash), (3, "text"), (4, key)]);
        told(answered("sign", &message))
    };
    assert_eq!(sign("md5", PRIVATE), "md5 is not supported.");
    assert_eq!(
        sign("sha256", PUBLIC),
        "Invalid key type: private key required for signing operation."
    );
    assert_eq!(
        sign("sha256", WEAK),
        "RSA signs with sha256, sha384 and sha512, and with keys of 2048 to 4096 bits whose exponent is at least 65537"
    );
    let verify = |hash, key| {
        let message = message(&[(1, hash), (3, "signature"), (4, "text"), (5, key)]);
        told(answered("verify_signature", &message))
    };
    assert_eq!(verify("", PUBLIC), " is not supported.");
    assert_eq!(
        verify("sha256", OTHER),
        "Failed to initialize digest verify."
    );
    assert_eq!(
        verify("Sha256", PUBLIC),
        "Failed to verify digest. Error code: 0"
    );
}

#[test]
fn arguments_that_are_none_are_refused() {
    for function in ["sign", "verify_signature"] {
        let both = message(&[(1, "sha256"), (2, "key"), (4, "key"), (5, "key")]);
        for arguments in [
            &b"no message"[..],
            b"",
            b"\x0a\x09ab",
            b"\x0a\x01\xff",
            &both,
        ] {
            assert_eq!(
                answered(function, arguments),
                ["02", ""],
                "{function} {arguments:?}"
            );
        }
    }
}
