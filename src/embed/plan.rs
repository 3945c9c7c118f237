//! Which texts share a forward pass. Pure.

/// Indices of `lengths`, longest first (equal lengths in order), packed into groups whose number of texts
/// times their longest stays within `pass_tokens`; a text longer than that is a group of its own.
pub fn plan(lengths: &[usize], pass_tokens: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(lengths[index]));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut room = 0;
    for index in order {
        // The first of a group is its longest, so it alone decides how many fit.
        match groups.last_mut() {
            Some(group) if room > 0 => group.push(index),
            _ => {
                groups.push(vec![index]);
                room = (pass_tokens / lengths[index].max(1)).max(1);
            }
        }
        room -= 1;
    }
    groups
}

/// A group in two, for a pass that did not fit or failed: the first half is never the smaller one.
pub fn halve(group: &[usize]) -> (&[usize], &[usize]) {
    group.split_at(group.len().div_ceil(2))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_text_is_in_one_group_within_the_budget(
            lengths in prop::collection::vec(0_usize..600, 0..80),
            pass_tokens in 0_usize..1_000,
        ) {
            let groups = plan(&lengths, pass_tokens);
            let mut seen: Vec<usize> = groups.concat();
            let flat: Vec<usize> = seen.iter().map(|&index| lengths[index]).collect();
            prop_assert!(flat.is_sorted_by(|a, b| a >= b), "longest first");
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            for group in &groups {
                let longest = group.iter().map(|&index| lengths[index]).max().unwrap();
                prop_assert!(group.len() == 1 || group.len() * longest.max(1) <= pass_tokens);
            }
        }

        #[test]
        fn no_group_could_have_taken_one_more(
            lengths in prop::collection::vec(1_usize..300, 1..60),
            pass_tokens in 1_usize..1_000,
        ) {
            let groups = plan(&lengths, pass_tokens);
            for group in &groups[..groups.len() - 1] {
                prop_assert!((group.len() + 1) * lengths[group[0]] > pass_tokens);
            }
        }

        #[test]
        fn halves_make_the_whole_and_both_shrink(len in 0_usize..40) {
            let group: Vec<usize> = (0..len).collect();
            let (first, second) = halve(&group);
            prop_assert_eq!([first, second].concat(), group.clone());
            prop_assert!(first.len() - second.len() <= 1);
        }
    }
}
