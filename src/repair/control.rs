//! Control characters: C0, DEL and C1, but for tab and line ends.

/// The text without them and how many there were; `None` when there are none.
pub(super) fn strip(text: &str) -> Option<(String, u64)> {
    let control = |c: &char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    let count = text.chars().filter(control).count() as u64;
    (count > 0).then(|| (text.chars().filter(|c| !control(c)).collect(), count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_can_read_goes() {
        assert_eq!(strip("a\0b\u{7f}c\u{85}d\u{1b}[0m"), Some(("abcd[0m".into(), 4)));
        assert_eq!(strip("a\tb\r\nc\u{200d}\u{feff}é"), None);
    }
}
