//! Comparison of what a client sent with a secret.

use std::hint::black_box;

/// Whether two texts are equal, in a time that depends on the length of `given` alone: a comparison that
/// stops at the first difference tells a patient client how much of a secret it has guessed.
pub(crate) fn equal(given: &[u8], secret: &[u8]) -> bool {
    let mut difference = given.len() ^ secret.len();
    for (byte, expected) in given.iter().zip(secret.iter().cycle()) {
        difference |= usize::from(byte ^ expected);
    }
    // The compiler must not find out that a difference, once there, stays.
    black_box(difference) == 0
}
