//! Tokens that a pass may hold on a device, learned from what did not fit. Pure.
//!
//! It halves at once, because a pass that fails costs its time, and grows back by an eighth after [`PASSES`] that fitted,
//! because what was short (another program's memory) often comes back. So a device that holds half of what is set costs
//! one pass in a hundred.

/// Passes that must fit before the budget grows.
pub const PASSES: u32 = 16;
/// Tokens below which it is not learned any lower: a text that fails by itself would else make every pass tiny, and a
/// device that does not hold so many holds nothing.
pub const LEAST: usize = 256;

/// The budget of one device for one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    most: usize,
    now: usize,
    fitted: u32,
}

impl Budget {
    /// At most `most` tokens; `remembered` from an earlier run, whatever it says.
    pub fn new(most: usize, remembered: Option<usize>) -> Self {
        let most = most.max(1);
        let now = remembered.unwrap_or(most).clamp(LEAST.min(most), most);
        Self { most, now, fitted: 0 }
    }

    /// Tokens that the next pass may hold.
    pub const fn tokens(&self) -> usize {
        self.now
    }

    /// What the next run should know; `None` when it is no less than what is set.
    pub fn learned(&self) -> Option<usize> {
        (self.now < self.most).then_some(self.now)
    }

    /// A pass did not fit into memory. True when the budget changed.
    pub fn did_not_fit(&mut self, texts: usize, tokens: usize) -> bool {
        self.fitted = 0;
        let before = self.now;
        // A text alone cannot be made smaller, so it says nothing of how many should go together.
        if texts > 1 {
            self.now = self.now.min((tokens / 2).max(LEAST.min(self.most)));
        }
        self.now != before
    }

    /// A pass did. True when the budget changed.
    pub fn fitted(&mut self, tokens: usize) -> bool {
        let before = self.now;
        // One text was at fault when its neighbours, as large together, fit without it.
        self.now = self.now.max(tokens.min(self.most));
        // Small passes prove nothing.
        self.fitted += u32::from(tokens > self.now / 2);
        if self.fitted >= PASSES {
            self.fitted = 0;
            self.now = self.now.saturating_add((self.now / 8).max(1)).min(self.most);
        }
        self.now != before
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_halves_at_once_and_grows_back_slowly() {
        let mut budget = Budget::new(4_096, None);
        assert_eq!((budget.tokens(), budget.learned()), (4_096, None));
        assert!(budget.did_not_fit(9, 4_000));
        assert_eq!((budget.tokens(), budget.learned()), (2_000, Some(2_000)));
        assert!((1..PASSES).all(|_| !budget.fitted(1_900)));
        assert!(budget.fitted(1_900));
        assert_eq!(budget.tokens(), 2_250);
        assert!((0..100).all(|_| !budget.fitted(1_000)), "small passes prove nothing");
        assert!((1..PASSES).all(|_| !budget.fitted(2_200)) && !budget.did_not_fit(1, 9_000));
        assert!((1..PASSES).all(|_| !budget.fitted(2_200)), "it counts from the failure on");
        let mut passes = 0;
        while budget.learned().is_some() {
            budget.fitted(budget.tokens());
            passes += 1;
        }
        assert!((60..120).contains(&passes), "{passes}");
        assert!(!budget.fitted(4_096), "never more than what is set");
    }

    #[test]
    fn one_text_that_never_fits_costs_its_neighbours_little() {
        // 4,096 tokens in 16 texts, the first of which fails by itself: the halves that hold it fail, the others fit.
        let mut budget = Budget::new(4_096, None);
        for (texts, tokens) in [(16, 4_096), (8, 2_048), (4, 1_024), (2, 512), (1, 256)] {
            budget.did_not_fit(texts, tokens);
        }
        assert_eq!(budget.tokens(), LEAST);
        for tokens in [256, 512, 1_024, 2_048] {
            budget.fitted(tokens);
        }
        assert_eq!(budget.tokens(), 2_048);
    }

    #[test]
    fn what_is_remembered_cannot_do_harm() {
        let tokens = |most, remembered| Budget::new(most, Some(remembered)).tokens();
        assert_eq!(tokens(4_096, 0), LEAST);
        assert_eq!(tokens(4_096, usize::MAX), 4_096);
        assert_eq!(tokens(16, 3), 16);
        assert_eq!(Budget::new(0, None).tokens(), 1);
    }

    /// Passes as large as the budget allows on a device that holds `holds` tokens: failures, and tokens in all.
    fn use_up(budget: &mut Budget, holds: usize, passes: usize) -> (usize, usize) {
        let (mut failed, mut done) = (0, 0);
        for _ in 0..passes {
            let tokens = budget.tokens();
            if tokens <= holds {
                budget.fitted(tokens);
                done += tokens;
            } else {
                budget.did_not_fit(2, tokens);
                failed += 1;
            }
        }
        (failed, done)
    }

    proptest! {
        #[test]
        fn it_stays_between_its_ends(
            most in 1_usize..20_000, remembered in any::<Option<usize>>(),
            passes in prop::collection::vec((any::<bool>(), 1_usize..4, 0_usize..30_000), 0..200),
        ) {
            let mut budget = Budget::new(most, remembered);
            for (fits, texts, tokens) in passes {
                let before = budget.clone();
                let changed = if fits { budget.fitted(tokens) } else { budget.did_not_fit(texts, tokens) };
                prop_assert_eq!(changed, before.tokens() != budget.tokens());
                prop_assert!((LEAST.min(most)..=most).contains(&budget.tokens()));
                if fits {
                    prop_assert!(budget.tokens() >= before.tokens().max(tokens.min(most)));
                } else {
                    prop_assert!(budget.tokens() <= before.tokens());
                    prop_assert!(texts == 1 || budget.tokens() <= (tokens / 2).max(LEAST));
                }
            }
        }

        #[test]
        fn a_smaller_device_is_used_well_and_fails_seldom(
            most in 1_000_usize..100_000, holds in 600_usize..200_000,
        ) {
            let mut budget = Budget::new(most, None);
            use_up(&mut budget, holds, 20);
            let (failed, done) = use_up(&mut budget, holds, 4_000);
            prop_assert!(failed <= 4_000 / 50, "{} of 4000 failed", failed);
            let could = holds.min(most);
            prop_assert!(done >= 4_000 * could / 2, "{} tokens a pass where {} fit", done / 4_000, could);
        }
    }
}
