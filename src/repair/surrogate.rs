//! `\uD800`-style escapes in JSON without their other half.

/// The JSON with `\uFFFD` in the place of each and how many there were; `None` when there are none. Everything else
/// stays byte by byte, so that it need not be valid JSON.
pub(super) fn fix(json: &str) -> Option<(String, u64)> {
    let bytes = json.as_bytes();
    let (mut out, mut start, mut at, mut count) = (String::new(), 0, 0, 0);
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'\\')) {
        at += found;
        at += match unit(bytes, at) {
            Some(0xd800..=0xdbff) if matches!(unit(bytes, at + 6), Some(0xdc00..=0xdfff)) => 12,
            Some(0xd800..=0xdfff) => {
                out.push_str(&json[start..at]);
                out.push_str("\\uFFFD");
                (start, count) = (at + 6, count + 1);
                6
            }
            Some(_) => 6,
            // An escape of another kind; what it escapes is no backslash of its own.
            None => 2,
        };
    }
    (count > 0).then(|| {
        out.push_str(&json[start..]);
        (out, count)
    })
}

/// The number of a `\uXXXX` that begins at `at`.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let escape = bytes.get(at..at.checked_add(6)?)?;
    let digits = std::str::from_utf8(escape.strip_prefix(b"\\u")?).ok()?;
    let all_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    all_hex.then(|| u16::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b03_lone_halves_are_replaced_and_pairs_stay() {
        let fixed = |json: &str| fix(json).map(|(json, count)| format!("{count} {json}"));
        assert_eq!(fixed(r#""a\ud83d b""#).unwrap(), r#"1 "a\uFFFD b""#);
        assert_eq!(fixed(r"\ude00\ud83d").unwrap(), r"2 \uFFFD\uFFFD");
        assert_eq!(fixed(r"\ud83d\ud83d\ude00").unwrap(), r"1 \uFFFD\ud83d\ude00");
        for fine in [r"\ud83d\ude00", r"\\ud83d", r"\u00e9\n", "plain é", r"\", r"\u", r"\ud8", "\\é"] {
            assert_eq!(fix(fine), None, "{fine}");
        }
    }
}
