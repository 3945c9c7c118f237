//! Which texts share a forward pass, and what a pass may hold. Pure.

/// Share of the free memory that passes may take when nothing is set: the other half is for the queue, the sink, and
/// whatever else the machine does.
const MEMORY_SHARE: u64 = 2;

/// Indices of `lengths` (in tokens), longest first (equal lengths in order), packed into groups of at most
/// `pass_tokens` tokens in sum; a text longer than that is a group of its own.
///
/// The sum, and not texts times the longest: the encoders compute no padding. Every text has a token, its special ones if
/// no other.
pub fn plan(lengths: &[usize], pass_tokens: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(lengths[index]));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut room = 0;
    for index in order {
        match groups.last_mut() {
            Some(group) if lengths[index] <= room => group.push(index),
            _ => {
                groups.push(vec![index]);
                room = pass_tokens;
            }
        }
        room = room.saturating_sub(lengths[index]);
    }
    groups
}

/// Tokens of a pass that fit into memory: of `memory_mb` where it is set, else into half of what is `available` (in
/// bytes; `None`: unknown, no limit). `token_bytes` is what a pass holds for each token.
pub fn tokens_within(memory_mb: u64, available: Option<u64>, token_bytes: usize) -> usize {
    let bytes = match memory_mb {
        0 => available.map(|free| free / MEMORY_SHARE),
        set => Some(set.saturating_mul(1024 * 1024)),
    };
    let tokens = bytes.map_or(u64::MAX, |bytes| bytes / (token_bytes as u64).max(1));
    usize::try_from(tokens).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(group: &[usize], lengths: &[usize]) -> usize {
        group.iter().map(|&index| lengths[index]).sum()
    }

    #[test]
    fn real_tokens_are_counted_and_no_padding() {
        assert_eq!(plan(&[10, 500, 480, 30], 1_020), [vec![1, 2, 3, 0]]);
        assert_eq!(plan(&[9_000, 5, 8_192, 6], 4_096), [vec![0], vec![2], vec![3, 1]]);
        assert_eq!(plan(&[], 10), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn c01_long_texts_run_alone_and_their_length_multiplies_nothing() {
        let mut lengths = vec![60; 193];
        lengths.splice(0..0, [6_500, 1_800, 6_500, 1_800, 6_500, 1_800, 1_800]);
        let groups = plan(&lengths, 4_096);
        assert_eq!(groups[..3], [vec![0], vec![2], vec![4]]);
        assert_eq!(
            groups.len(),
            3 + (4 * 1_800 + 193 * 60_usize).div_ceil(4_096),
            "as few as the sum allows"
        );
        assert!(groups[3..].iter().all(|group| sum(group, &lengths) <= 4_096));
    }

    #[test]
    fn memory_is_what_is_set_or_half_of_what_is_free() {
        const MB: u64 = 1024 * 1024;
        assert_eq!(tokens_within(0, Some(8 * MB), 1024), 4 * 1024);
        assert_eq!(tokens_within(2, Some(8 * MB), 1024), 2 * 1024);
        assert_eq!(tokens_within(0, None, 1024), usize::MAX);
        assert_eq!(tokens_within(0, Some(0), 1024), 1, "a single text is tried, whatever is left");
        assert_eq!(tokens_within(u64::MAX, None, 0), usize::MAX);
    }

    proptest! {
        #[test]
        fn every_text_is_in_one_group_within_the_budget(
            lengths in prop::collection::vec(1_usize..600, 0..80),
            pass_tokens in 0_usize..1_000,
        ) {
            let groups = plan(&lengths, pass_tokens);
            let mut seen: Vec<usize> = groups.concat();
            let flat: Vec<usize> = seen.iter().map(|&index| lengths[index]).collect();
            prop_assert!(flat.is_sorted_by(|a, b| a >= b), "longest first");
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            for group in &groups {
                prop_assert!(group.len() == 1 || sum(group, &lengths) <= pass_tokens);
            }
        }

        #[test]
        fn no_group_could_have_taken_the_next_text(
            lengths in prop::collection::vec(1_usize..300, 1..60),
            pass_tokens in 1_usize..1_000,
        ) {
            let groups = plan(&lengths, pass_tokens);
            for two in groups.windows(2) {
                prop_assert!(sum(&two[0], &lengths) + lengths[two[1][0]] > pass_tokens);
            }
        }
    }
}
