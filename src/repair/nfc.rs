//! Unicode normal form C.

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// The text composed and in how many places it differs, at least 1; `None` when it is in this form.
pub(super) fn normalize(text: &str) -> Option<(String, u64)> {
    if is_nfc_quick(text.chars()) == IsNormalized::Yes {
        return None;
    }
    let composed: String = text.nfc().collect();
    if composed == text {
        return None;
    }
    let fewer = text.chars().count().abs_diff(composed.chars().count()) as u64;
    Some((composed, fewer.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a11_decomposed_letters_are_composed() {
        assert_eq!(normalize("e\u{301}te\u{301}"), Some(("été".into(), 2)));
        assert_eq!(normalize("\u{1112}\u{1161}\u{11ab}"), Some(("한".into(), 2)));
        assert_eq!(normalize("\u{212b}"), Some(("Å".into(), 1)));
        assert_eq!(normalize("été 한 ﬁ"), None);
    }
}
