//! Which pass comes next when passes fail as a whole: a pure plan, for texts at the model and rows at the sink.
//!
//! A group that fails is halved until its culprit stands alone. An item is guilty when it failed, the dependency then
//! worked, the item failed again alone, and the dependency worked once more: so no outage, whenever it begins or ends,
//! charges anybody. That it works is shown by the next group that passes, or by a golden text (a probe row) when two
//! fail in a row or no group is left. At most 2·⌈log₂B⌉ + 1 passes more per poison item in a batch of B, and two of the
//! golden text.

use crate::error::Fault;

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// Try these together; then say [`Bisect::passed`], [`Bisect::failed`] or [`Bisect::put_back`].
    Pass(Vec<T>),
    /// Try what is known to work; then say [`Bisect::golden`].
    Golden,
    /// Nothing is left.
    Done,
}

#[derive(Clone, Debug)]
struct Group<T> {
    items: Vec<T>,
    /// Its other half lies below it.
    left: bool,
    /// It failed, and the dependency worked since: once more and it is guilty.
    doubted: bool,
}

/// The plan.
#[derive(Clone, Debug)]
pub struct Bisect<T> {
    /// The next one last.
    groups: Vec<Group<T>>,
    /// Items that failed alone, while nothing has shown since that the dependency works.
    suspects: Vec<T>,
    /// Items that failed alone a second time, likewise.
    condemned: Vec<(T, Fault)>,
    guilty: Vec<(T, Fault)>,
    golden: bool,
    /// Of the group that is out.
    left: bool,
    doubted: bool,
}

impl<T> Bisect<T> {
    /// A plan over these groups, in order.
    pub fn new(groups: Vec<Vec<T>>) -> Self {
        let group = |items| Group { items, left: false, doubted: false };
        let groups = groups.into_iter().rev().map(group).collect();
        let (suspects, condemned, guilty) = (Vec::new(), Vec::new(), Vec::new());
        Self { groups, suspects, condemned, guilty, golden: false, left: false, doubted: false }
    }

    /// What comes next.
    pub fn step(&mut self) -> Step<T> {
        if self.golden {
            return Step::Golden;
        }
        while let Some(Group { items, left, doubted }) = self.groups.pop() {
            if !items.is_empty() {
                (self.left, self.doubted) = (left, doubted);
                return Step::Pass(items);
            }
        }
        self.golden = self.in_doubt();
        if self.golden { Step::Golden } else { Step::Done }
    }

    /// The group passed.
    pub fn passed(&mut self) {
        if self.left
            && let Some(right) = self.groups.last_mut()
        {
            // Both failed together, and it was not this half.
            right.doubted = right.items.len() == 1;
        }
        self.works();
    }

    /// The group failed, and nobody knows for which of its items.
    pub fn failed(&mut self, mut items: Vec<T>, fault: Fault) {
        self.golden = self.in_doubt();
        if items.len() > 1 {
            let right = items.split_off(items.len() / 2);
            self.groups.push(Group { items: right, left: false, doubted: false });
            self.groups.push(Group { items, left: true, doubted: false });
        } else if self.doubted {
            self.condemned.extend(items.pop().map(|item| (item, fault)));
        } else {
            self.suspects.extend(items);
        }
    }

    /// Items that were found guilty since this was last asked.
    pub fn guilty(&mut self) -> Vec<(T, Fault)> {
        std::mem::take(&mut self.guilty)
    }

    /// What is left of the group is tried again as it is: the dependency failed, or one item was named and taken out.
    pub fn put_back(&mut self, items: Vec<T>) {
        self.groups.push(Group { items, left: false, doubted: false });
    }

    /// Whether what is known to work did.
    pub fn golden(&mut self, works: bool) {
        self.golden = false;
        if works {
            self.works();
        } else {
            // Their failures prove nothing.
            let condemned = self.condemned.drain(..).map(|(item, _)| item);
            let items: Vec<T> = condemned.chain(self.suspects.drain(..)).collect();
            self.push_alone(items, false);
        }
    }

    fn in_doubt(&self) -> bool {
        !self.suspects.is_empty() || !self.condemned.is_empty()
    }

    fn works(&mut self) {
        self.guilty.append(&mut self.condemned);
        let suspects = std::mem::take(&mut self.suspects);
        self.push_alone(suspects, true);
    }

    fn push_alone(&mut self, items: Vec<T>, doubted: bool) {
        let alone = |item| Group { items: vec![item], left: false, doubted };
        self.groups.extend(items.into_iter().rev().map(alone));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::error::Class;

    /// What a whole plan came to.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Outcome {
        passes: usize,
        goldens: usize,
        embedded: Vec<usize>,
        guilty: BTreeSet<usize>,
    }

    /// Carries a plan out; `down` says whether the dependency is down at the nth call.
    fn carry_out(batch: usize, poison: &BTreeSet<usize>, down: impl Fn(usize) -> bool) -> Outcome {
        let (mut bisect, mut outcome) = (Bisect::new(vec![(0..batch).collect()]), Outcome::default());
        loop {
            let down = down(outcome.passes + outcome.goldens);
            outcome.guilty.extend(bisect.guilty().into_iter().map(|(item, _)| item));
            match bisect.step() {
                Step::Done => return outcome,
                Step::Golden => {
                    outcome.goldens += 1;
                    bisect.golden(!down);
                }
                Step::Pass(group) => {
                    outcome.passes += 1;
                    if down || group.iter().any(|item| poison.contains(item)) {
                        bisect.failed(group, Fault::new(Class::ModelFailed, "planted"));
                    } else {
                        outcome.embedded.extend(group);
                        bisect.passed();
                    }
                }
            }
        }
    }

    fn bound(batch: usize) -> usize {
        2 * batch.next_power_of_two().ilog2() as usize + 1
    }

    fn holds(batch: usize, poison: &BTreeSet<usize>) {
        let mut outcome = carry_out(batch, poison, |_| false);
        let extra = outcome.passes - 1;
        assert!(outcome.goldens <= 2 * poison.len(), "{} golden texts for {poison:?}", outcome.goldens);
        assert!(extra <= poison.len() * bound(batch), "{extra} passes more for {poison:?} of {batch}");
        outcome.embedded.sort_unstable();
        let healthy: Vec<usize> = (0..batch).filter(|item| !poison.contains(item)).collect();
        assert_eq!(outcome.embedded, healthy, "each healthy item once");
        assert_eq!(&outcome.guilty, poison);
    }

    #[test]
    fn any_one_or_two_poison_items_cost_no_more_than_promised() {
        for batch in 1..=66 {
            for one in 0..batch {
                holds(batch, &BTreeSet::from([one]));
                (0..one).for_each(|two| holds(batch, &BTreeSet::from([one, two])));
            }
        }
    }

    #[test]
    fn a_wholly_bad_batch_is_found_out() {
        (1..=130).for_each(|batch| holds(batch, &(0..batch).collect()));
    }

    proptest! {
        #[test]
        fn any_poison_costs_no_more_than_promised(
            batch in 1_usize..600, places in proptest::collection::vec(any::<prop::sample::Index>(), 1..40),
        ) {
            holds(batch, &places.iter().map(|place| place.index(batch)).collect());
        }

        /// One outage, whenever it begins and ends: no healthy item is charged, and each is embedded once.
        #[test]
        fn an_outage_charges_nobody(
            batch in 1_usize..80, places in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
            from in 0_usize..60, calls in 0_usize..60,
        ) {
            let poison: BTreeSet<usize> = places.iter().map(|place| place.index(batch)).collect();
            let mut outcome = carry_out(batch, &poison, |call| (from..from + calls).contains(&call));
            outcome.embedded.sort_unstable();
            prop_assert_eq!(&outcome.guilty, &poison);
            prop_assert_eq!(outcome.embedded.len(), batch - poison.len());
            outcome.embedded.dedup();
            prop_assert_eq!(outcome.embedded.len(), batch - poison.len());
        }
    }
}
