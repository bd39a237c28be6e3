//! Signatures of the text `order=42` that OpenSSL 3 made: `signatures.txt` has key, digest and signature.

use base64::Engine as _;

use super::*;

const SIGNATURES: &str = include_str!("signatures.txt");
const DATA: &[u8] = b"order=42";

fn key(name: &str) -> &'static str {
    match name {
        "rsa1024" => include_str!("keys/rsa1024.pem"),
        "rsa2048" => include_str!("keys/rsa2048.pem"),
        "p256" => include_str!("keys/p256.pem"),
        "p384" => include_str!("keys/p384.pem"),
        "p521" => include_str!("keys/p521.pem"),
        "ed25519" => include_str!("keys/ed25519.pem"),
        _ => panic!("no key {name}"),
    }
}

fn signatures() -> impl Iterator<Item = (&'static str, &'static str, Vec<u8>)> {
    SIGNATURES.lines().map(|line| {
        let mut words = line.split(' ');
        let (name, hash) = (words.next().unwrap(), words.next().unwrap());
        let signature = base64::engine::general_purpose::STANDARD.decode(words.next().unwrap());
        (name, hash, signature.unwrap())
    })
}

#[test]
fn what_another_library_signed_is_found_right() {
    let mut checked = 0;
    for (name, hash, signature) in signatures() {
        let hash = hash_named(hash.as_bytes());
        for key in [
            key(name).as_bytes().to_vec(),
            import(key(name).as_bytes()).unwrap(),
        ] {
            assert_eq!(
                verify(hash, &key, &signature, DATA),
                Ok(true),
                "{name} {hash:?}"
            );
            assert_eq!(
                verify(hash, &key, &signature, b"order=43"),
                Ok(false),
                "{name} {hash:?}"
            );
            for at in [0, 1, signature.len() / 2, signature.len() - 1] {
                let mut other = signature.clone();
                other[at] ^= 1;
                assert_eq!(
                    verify(hash, &key, &other, DATA),
                    Ok(false),
                    "{name} {hash:?} {at}"
                );
            }
            for wrong in [&[][..], &signature[1..], &[0; 64], &[0xff; 256]] {
                assert_eq!(
                    verify(hash, &key, wrong, DATA),
                    Ok(false),
                    "{name} {hash:?}"
                );
            }
        }
        checked += 1;
    }
    assert_eq!(checked, 15);
}

#[test]
fn another_key_or_digest_does_not_do() {
    let (_, _, signature) = signatures()
        .find(|(name, hash, _)| *name == "rsa2048" && *hash == "sha224")
        .unwrap();
    let verify = |hash, name: &str| verify(Some(hash), key(name).as_bytes(), &signature, DATA);
    assert_eq!(verify(Hash::Sha224, "rsa1024"), Ok(false));
    assert_eq!(verify(Hash::Sha256, "rsa2048"), Ok(false));
    assert_eq!(verify(Hash::Sha224, "p256"), Err(SignatureError::OtherHash));
    assert_eq!(
        verify(Hash::Sha256, "ed25519"),
        Err(SignatureError::NeedsNoHash)
    );
}

/// One of DER's two numbers, without its leading zero, and what follows it.
fn number(der: &[u8], length: usize) -> (Vec<u8>, &[u8]) {
    let (bytes, rest) = der[2..].split_at(usize::from(der[1]));
    let significant = &bytes[bytes.len().saturating_sub(length)..];
    let mut fixed = vec![0; length - significant.len()];
    fixed.extend_from_slice(significant);
    (fixed, rest)
}

#[test]
fn ecdsa_signatures_of_json_web_tokens_are_taken() {
    for (name, hash, length) in [("p256", "sha256", 32), ("p384", "sha384", 48)] {
        let (_, _, der) = signatures()
            .find(|(of, with, _)| *of == name && *with == hash)
            .unwrap();
        let (first, rest) = number(&der[2..], length);
        let (second, _) = number(rest, length);
        let fixed = [first, second].concat();
        let hash = hash_named(hash.as_bytes());
        assert_eq!(
            verify(hash, key(name).as_bytes(), &fixed, DATA),
            Ok(true),
            "{name}"
        );
        assert_eq!(
            verify(hash, key(name).as_bytes(), &fixed, b"x"),
            Ok(false),
            "{name}"
        );
    }
}

#[test]
fn keys_that_are_none_are_told_apart() {
    for (text, expected) in [
        ("", SignatureError::NoKey),
        ("key", SignatureError::NoKey),
        ("-----BEGIN PUBLIC KEY-----", SignatureError::NoKey),
        (
            "-----BEGIN CERTIFICATE-----\nMCowBQYDK2VwAyEAkq2WEwYHb1HonEK7vXrMrbi4sOij+h34zggJIpWCxeU=\n-----END CERTIFICATE-----\n",
            SignatureError::NoKey,
        ),
        (key("p521"), SignatureError::OtherKey),
    ] {
        assert_eq!(import(text.as_bytes()), Err(expected), "{text}");
        assert_eq!(
            verify(Some(Hash::Sha256), text.as_bytes(), b"", b""),
            Err(expected),
            "{text}"
        );
    }
    assert_eq!(
        verify(None, key("p256").as_bytes(), b"", b""),
        Err(SignatureError::NeedsHash)
    );
    // A key of 1024 bits whose modulus is cut to 1000.
    let mut short = import(key("rsa1024").as_bytes()).unwrap();
    let modulus = short
        .windows(2)
        .position(|pair| pair == [0x02, 0x81])
        .unwrap()
        + 4;
    for byte in &mut short[modulus..modulus + 3] {
        *byte = 0;
    }
    assert!(import(&short).is_err());
}
