//! Keys that were made for these tests, and signatures of the text `order=42`, all by OpenSSL 3: `signatures.txt` has
//! key, digest and signature.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

const SIGNATURES: &str = include_str!("../vectors/signatures.txt");
const DATA: &[u8] = b"order=42";

macro_rules! vectors {
    ($name:expr, $folder:literal, $($known:literal)+) => {
        match $name {
            $($known => include_str!(concat!("../vectors/", $folder, "/", $known, ".pem")),)+
            name => panic!("no key {name}"),
        }
    };
}

fn key(name: &str) -> &'static str {
    vectors!(name, "keys", "rsa1024" "rsa2048" "p256" "p256-compressed" "p384" "p521" "ed25519")
}

fn private(name: &str) -> &'static str {
    vectors!(
        name, "private", "rsa1024" "rsa2048" "rsa2048-pkcs1" "p256" "p256-sec1" "p256-encrypted" "p384"
        "p384-alone" "p521" "ed25519"
    )
}

fn der(name: &str) -> Vec<u8> {
    pem::public_key(key(name).as_bytes()).unwrap()
}

fn signatures() -> impl Iterator<Item = (&'static str, Option<Hash>, Vec<u8>)> {
    SIGNATURES.lines().map(|line| {
        let mut words = line.split(' ');
        let (name, hash) = (words.next().unwrap(), words.next().unwrap());
        let signature = STANDARD.decode(words.next().unwrap());
        (name, Hash::named(hash.as_bytes()), signature.unwrap())
    })
}

fn signature_of(name: &str, hash: Option<Hash>) -> Vec<u8> {
    signatures()
        .find(|(of, with, _)| *of == name && *with == hash)
        .unwrap()
        .2
}

fn verify(
    hash: Option<Hash>,
    der: &[u8],
    signature: &[u8],
    data: &[u8],
) -> Result<bool, SignatureError> {
    PublicKey::from_der(der)?.verify(hash, Form::Der, signature, data, &|| false)
}

#[test]
fn what_another_library_signed_is_found_right() {
    let mut checked = 0;
    for (name, hash, signature) in signatures() {
        let key = der(name);
        let verify = |signature: &[u8], data: &[u8]| verify(hash, &key, signature, data);
        assert_eq!(verify(&signature, DATA), Ok(true), "{name} {hash:?}");
        assert_eq!(
            verify(&signature, b"order=43"),
            Ok(false),
            "{name} {hash:?}"
        );
        for at in [0, 1, signature.len() / 2, signature.len() - 1] {
            let mut other = signature.clone();
            other[at] ^= 1;
            assert_eq!(verify(&other, DATA), Ok(false), "{name} {hash:?} {at}");
        }
        for wrong in [&[][..], &signature[1..], &[0; 64], &[0xff; 256]] {
            assert_eq!(verify(wrong, DATA), Ok(false), "{name} {hash:?}");
        }
        checked += 1;
    }
    assert_eq!(checked, 26);
}

#[test]
fn another_key_or_digest_does_not_do() {
    let signature = signature_of("rsa2048", Some(Hash::Sha224));
    let verify = |hash, name: &str| verify(hash, &der(name), &signature, DATA);
    assert_eq!(verify(Some(Hash::Sha224), "rsa1024"), Ok(false));
    assert_eq!(verify(Some(Hash::Sha256), "rsa2048"), Ok(false));
    assert_eq!(verify(Some(Hash::Sha224), "p256"), Ok(false));
    assert_eq!(verify(None, "p256"), Err(SignatureError::NeedsHash));
    assert_eq!(
        verify(Some(Hash::Sha256), "ed25519"),
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
fn ecdsa_signatures_of_json_web_tokens_are_taken_where_they_may_be() {
    for (name, hash, length, header) in [
        ("p256", Hash::Sha256, 32, 2),
        ("p256", Hash::Sha512, 32, 2),
        ("p384", Hash::Sha384, 48, 2),
        ("p521", Hash::Sha512, 66, 3),
    ] {
        let made = signature_of(name, Some(hash));
        let (first, rest) = number(&made[header..], length);
        let (second, _) = number(rest, length);
        let fixed = [first, second].concat();
        let der = der(name);
        let key = PublicKey::from_der(&der).unwrap();
        let verify =
            |form, signature, data| key.verify(Some(hash), form, signature, data, &|| false);
        assert_eq!(verify(Form::Any, &fixed, DATA), Ok(true), "{name}");
        assert_eq!(verify(Form::Any, &fixed, b"x"), Ok(false), "{name}");
        assert_eq!(verify(Form::Der, &fixed, DATA), Ok(false), "{name}");
        assert_eq!(verify(Form::Any, &made, DATA), Ok(true), "{name}");
    }
}

#[test]
fn points_may_be_compressed_and_have_to_be_on_the_curve() {
    let signature = signature_of("p256", Some(Hash::Sha256));
    let mut point = der("p256-compressed");
    let check = |der: &[u8]| verify(Some(Hash::Sha256), der, &signature, DATA);
    assert_eq!(check(&point), Ok(true));
    // The other of the two points with this coordinate.
    let parity = point.len() - 33;
    point[parity] ^= 1;
    assert_eq!(check(&point), Ok(false));
    let mut point = der("p521");
    *point.last_mut().unwrap() ^= 1;
    let signature = signature_of("p521", Some(Hash::Sha512));
    assert_eq!(
        verify(Some(Hash::Sha512), &point, &signature, DATA),
        Ok(false)
    );
}

#[test]
fn public_keys_that_are_none_are_told_apart() {
    let no_key = |der: &[u8]| PublicKey::from_der(der).unwrap_err();
    assert_eq!(no_key(b""), SignatureError::NoKey);
    assert_eq!(no_key(b"key"), SignatureError::NoKey);
    let whole = der("p256");
    assert_eq!(no_key(&whole[..whole.len() - 1]), SignatureError::NoKey);
    assert!(PublicKey::from_der(&[&whole, &b"more"[..]].concat()).is_ok());
    let mut other = whole;
    // P-256's name, 1.2.840.10045.3.1.7, ends in another number.
    let at = other.windows(2).position(|at| at == [1, 7]).unwrap() + 1;
    other[at] = 1;
    assert_eq!(no_key(&other), SignatureError::OtherKey);
    // A modulus that is cut by three bytes.
    let mut short = der("rsa1024");
    let modulus = short
        .windows(2)
        .position(|pair| pair == [0x02, 0x81])
        .unwrap()
        + 4;
    short[modulus..modulus + 3].fill(0);
    assert_eq!(no_key(&short), SignatureError::NoKey);
}

#[test]
fn keys_are_found_in_texts() {
    let block = key("p256");
    let found = pem::public_key(block.as_bytes());
    assert_eq!(found, Some(der("p256")));
    for text in [
        format!("a note\n{}{block}", private("p384")),
        block.replace('\n', "\r\n"),
        format!("  {block}{}", key("p384")),
    ] {
        assert_eq!(pem::public_key(text.as_bytes()), found, "{text}");
    }
    let bytes_before = [&b"\xff\xfe\n"[..], block.as_bytes()].concat();
    assert_eq!(pem::public_key(&bytes_before), found);
    for none in [
        String::new(),
        "-----BEGIN PUBLIC KEY-----".to_owned(),
        block.replace("PUBLIC KEY", "CERTIFICATE"),
        block.replace("END PUBLIC", "END PRIVATE"),
        block.replace("-----\nM", "-----\n!M"),
        private("p256").to_owned(),
    ] {
        assert_eq!(pem::public_key(none.as_bytes()), None, "{none}");
    }
}

#[test]
fn what_is_signed_is_found_right() {
    for (name, public, hashes) in [
        ("rsa2048", "rsa2048", &ALL[2..]),
        ("rsa2048-pkcs1", "rsa2048", &ALL[2..]),
        ("p256", "p256", &ALL[..]),
        ("p256-sec1", "p256", &ALL[..]),
        ("p384", "p384", &ALL[..]),
        ("p384-alone", "p384", &ALL[..]),
        ("p521", "p521", &ALL[..]),
    ] {
        let text = private(name).as_bytes();
        let key = PrivateKey::from_pem(text).unwrap();
        for hash in hashes {
            let made = key.sign(*hash, DATA).unwrap();
            assert_eq!(
                verify(Some(*hash), &der(public), &made, DATA),
                Ok(true),
                "{name} {hash:?}"
            );
            assert_eq!(
                verify(Some(*hash), &der(public), &made, b"order=43"),
                Ok(false),
                "{name} {hash:?}"
            );
            if public == "rsa2048" {
                assert_eq!(made, signature_of(public, Some(*hash)), "{name} {hash:?}");
            }
        }
    }
}

const ALL: [Hash; 5] = [
    Hash::Sha1,
    Hash::Sha224,
    Hash::Sha256,
    Hash::Sha384,
    Hash::Sha512,
];

#[test]
fn what_cannot_sign_says_so() {
    let sign = |name: &str, hash| {
        PrivateKey::from_pem(private(name).as_bytes()).and_then(|key| key.sign(hash, DATA))
    };
    for (name, hash, expected) in [
        ("rsa1024", Hash::Sha256, SignatureError::CannotSign),
        ("rsa2048", Hash::Sha1, SignatureError::CannotSign),
        ("rsa2048", Hash::Sha224, SignatureError::CannotSign),
        ("ed25519", Hash::Sha256, SignatureError::NeedsNoHash),
        ("p256-encrypted", Hash::Sha256, SignatureError::NoPrivateKey),
    ] {
        assert_eq!(sign(name, hash), Err(expected), "{name}");
    }
    let (_, whole) = pem::first(private("p256").as_bytes(), &["PRIVATE KEY"]).unwrap();
    assert!(PrivateKey::from_der(&whole).is_ok());
    for none in [&b""[..], b"key", &whole[..whole.len() - 1], &der("p256")] {
        assert_eq!(
            PrivateKey::from_der(none).unwrap_err(),
            SignatureError::NoPrivateKey
        );
    }
    assert_eq!(
        PrivateKey::from_pem(key("p256").as_bytes()).unwrap_err(),
        SignatureError::NoPrivateKey
    );
    // One of the primes is another number.
    let (_, mut rsa) = pem::first(private("rsa2048").as_bytes(), &["PRIVATE KEY"]).unwrap();
    let middle = rsa.len() / 2 + 100;
    rsa[middle] ^= 2;
    assert_eq!(
        PrivateKey::from_der(&rsa).unwrap_err(),
        SignatureError::NoPrivateKey
    );
}

#[test]
fn private_keys_do_not_show_their_numbers() {
    let shown = |name: &str| {
        let key = PrivateKey::from_pem(private(name).as_bytes());
        format!("{:?}", key.unwrap())
    };
    assert_eq!(shown("p256"), "PrivateKey(P256(SigningKey { .. }))");
    let rsa = shown("rsa2048");
    assert!(
        rsa.starts_with("PrivateKey(Rsa(RsaKeyPair { public: "),
        "{rsa}"
    );
    // 2,048 bits in hexadecimal digits, and no other number beside them.
    assert!(rsa.len() < 700, "{rsa}");
}

#[test]
fn digest_checks_as_its_text_does() {
    for (name, hash, signature) in signatures() {
        let Some(hash) = hash else { continue };
        let der = der(name);
        let key = PublicKey::from_der(&der).unwrap();
        let verify = |data: &[u8]| {
            key.verify_digest(hash, Form::Der, &signature, &hash.digest(data))
                .unwrap()
        };
        assert!(verify(DATA), "{name} {hash:?}");
        assert!(!verify(b"order=43"), "{name} {hash:?}");
    }
}

#[test]
fn long_text_is_checked_in_pieces_until_the_time_is_over() {
    let text = vec![b'x'; 2 * MOST_UNCHECKED];
    for (name, hash) in [
        ("rsa2048", Hash::Sha256),
        ("p256", Hash::Sha256),
        ("p384", Hash::Sha384),
        ("p521", Hash::Sha512),
    ] {
        let signature = PrivateKey::from_pem(private(name).as_bytes()).unwrap();
        let signature = signature.sign(hash, &text).unwrap();
        let der = der(name);
        let key = PublicKey::from_der(&der).unwrap();
        let asked = std::cell::Cell::new(0);
        let verify = |text: &[u8], most| {
            asked.set(0);
            key.verify(Some(hash), Form::Any, &signature, text, &|| {
                asked.set(asked.get() + 1);
                asked.get() > most
            })
        };
        assert_eq!(verify(&text, usize::MAX), Ok(true), "{name}");
        assert!(asked.get() >= 10, "{name}: {}", asked.get());
        assert_eq!(verify(&text[1..], usize::MAX), Ok(false), "{name}");
        assert_eq!(verify(&text, 3), Err(SignatureError::OverTime), "{name}");
    }
    let der = der("ed25519");
    let key = PublicKey::from_der(&der).unwrap();
    let checked = key.verify(None, Form::Any, &[0; 64], &text, &|| false);
    assert_eq!(checked, Err(SignatureError::TooLong));
}
