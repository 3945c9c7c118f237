//! Finds a chunk in its document again without having kept its text: by length and rolling checksum, proven by its
//! SHA-256. Neither the splitter nor its settings are needed, and text before it may have changed.
//!
//! Source: R. M. Karp, M. O. Rabin, "Efficient randomized pattern-matching algorithms", 1987, modulo 2⁶¹ − 1.

use crate::chunk::Digest;

const MODULUS: u64 = (1 << 61) - 1;
const BASE: u64 = 0x0b4f_5a1d_9c3e_7721;

fn product(a: u64, b: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) % u128::from(MODULUS)).expect("a remainder of 61 bits")
}

fn pushed(sum: u64, byte: u8) -> u64 {
    // One more than the byte, so that leading zero bytes count.
    (product(sum, BASE) + u64::from(byte) + 1) % MODULUS
}

/// The checksum by which [`locate`] finds a text.
pub fn checksum(text: &str) -> u64 {
    text.bytes().fold(0, pushed)
}

/// The first place in `document` of the text that has this many bytes, this checksum and this SHA-256.
pub fn locate<'a>(document: &'a str, bytes: usize, checksum: u64, hash: &Digest) -> Option<&'a str> {
    let all = document.as_bytes();
    if bytes == 0 || bytes > all.len() {
        return None;
    }
    let highest = (1..bytes).fold(1, |power, _| product(power, BASE));
    let mut sum = all[..bytes].iter().fold(0, |sum, byte| pushed(sum, *byte));
    for start in 0..=all.len() - bytes {
        if sum == checksum
            && let Some(text) = document.get(start..start + bytes)
            && Digest::of(text.as_bytes()) == *hash
        {
            return Some(text);
        }
        if let Some(next) = all.get(start + bytes) {
            let gone = product(highest, u64::from(all[start]) + 1);
            sum = pushed((sum + MODULUS - gone) % MODULUS, *next);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_slice_is_found_and_nothing_else_is(document in "[aé\u{0}b]{1,60}", from: usize, to: usize) {
            let edges: Vec<usize> =
                document.char_indices().map(|(at, _)| at).chain([document.len()]).collect();
            let (a, b) = (edges[from % edges.len()], edges[to % edges.len()]);
            let text = &document[a.min(b)..a.max(b)];
            let (sum, hash) = (checksum(text), Digest::of(text.as_bytes()));
            let found = locate(&document, text.len(), sum, &hash);
            prop_assert_eq!(found, (!text.is_empty()).then_some(text));
            prop_assert_eq!(locate(&document, text.len(), sum ^ 1, &hash), None);
            prop_assert_eq!(locate(&document, text.len(), sum, &Digest::of(b"another")), None);
        }
    }

    #[test]
    fn a_longer_text_than_the_document_is_not_in_it() {
        assert_eq!(locate("ab", 3, checksum("abc"), &Digest::of(b"abc")), None);
        assert_eq!(locate("", 0, 0, &Digest::of(b"")), None);
    }
}
