//! Texts that are too long for the model.

/// The longest beginning found for which `fits` holds, cut between characters, and how many characters went; `None` when
/// all of it fits, or nothing but white space would be left. Asks `fits` some log₂(length) times; it should hold for
/// every beginning of a text for which it holds.
pub(super) fn to_fit(text: &str, fits: &dyn Fn(&str) -> bool) -> Option<(String, u64)> {
    if fits(text) {
        return None;
    }
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    // The beginning of `low` characters fits (or is empty), that of `high` does not.
    let (mut low, mut high) = (0, ends.len());
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(&text[..ends[middle]]) { low = middle } else { high = middle }
    }
    let kept = &text[..*ends.get(low)?];
    (!kept.trim().is_empty()).then(|| (kept.to_owned(), (ends.len() - low) as u64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_left_is_the_longest_that_fits(text in "\\PC{0,80}", limit in 0..100_usize) {
            let fits = |text: &str| text.chars().count() <= limit;
            match to_fit(&text, &fits) {
                Some((cut, gone)) => {
                    prop_assert!(fits(&cut) && text.starts_with(&cut));
                    prop_assert_eq!(cut.chars().count(), limit);
                    prop_assert_eq!(cut.chars().count() as u64 + gone, text.chars().count() as u64);
                    prop_assert_eq!(to_fit(&cut, &fits), None);
                }
                None => prop_assert!(fits(&text) || text.chars().take(limit).all(char::is_whitespace)),
            }
        }
    }
}
