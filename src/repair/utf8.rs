//! Bytes that are not UTF-8.

/// The text with U+FFFD in the place of each run of wrong bytes and how many there were; `None` when there are none.
pub(super) fn lossy(bytes: &[u8]) -> Option<(String, u64)> {
    let (mut out, mut count) = (String::new(), 0);
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            count += 1;
        }
    }
    (count > 0).then_some((out, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b05_wrong_bytes_are_replaced_and_right_ones_stay() {
        assert_eq!(lossy(b"caf\xe9 \xc3\xa9 \xc3"), Some(("caf\u{fffd} é \u{fffd}".into(), 2)));
        assert_eq!(lossy("été \u{fffd}".as_bytes()), None);
    }
}
