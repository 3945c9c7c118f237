//! When somebody is told of dead letters: a pure decision, each alert once a run. `alarm` carries it out.

use std::{collections::HashSet, time::Duration};

use serde::Serialize;

use crate::error::Class;

/// `dlq.alert_*` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Open letters from which somebody is told.
    pub depth: u64,
    /// Hours since the first failure of the oldest open letter from which somebody is told; 0: never.
    pub age_h: u64,
    /// What `sh -c` is given; empty: nothing.
    pub command: String,
}

/// Why somebody is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Alert {
    /// A letter of a class of which no other one was open.
    FirstOfClass,
    /// A letter was quarantined, and no other one was.
    FirstQuarantine,
    /// As many are open as `dlq.alert_depth`.
    Depth,
    /// The oldest open one is older than `dlq.alert_age_h`.
    Age,
}

impl Alert {
    /// The text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FirstOfClass => "first_of_class",
            Self::FirstQuarantine => "first_quarantine",
            Self::Depth => "depth",
            Self::Age => "age",
        }
    }
}

/// What is known of the DLQ at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Classes that have open letters.
    pub classes: HashSet<Class>,
    /// Letters that are open or quarantined.
    pub open: u64,
    /// Letters that are quarantined.
    pub quarantined: u64,
    /// Age of the oldest of them, when it was looked at.
    pub oldest: Option<Duration>,
}

/// What was told in this run.
#[derive(Clone, Debug, Default)]
pub struct Alerts {
    told: HashSet<(Alert, Option<Class>)>,
}

impl Alerts {
    /// What is to be told after a change of the DLQ from `before` to `after`, or (the same twice) of how it is.
    pub fn look(
        &mut self,
        settings: &Settings,
        before: &Moment,
        after: &Moment,
    ) -> Vec<(Alert, Option<Class>)> {
        let mut news: Vec<_> = after
            .classes
            .difference(&before.classes)
            .map(|class| (Alert::FirstOfClass, Some(*class)))
            .collect();
        news.sort_unstable_by_key(|(_, class)| *class);
        if before.quarantined == 0 && after.quarantined > 0 {
            news.push((Alert::FirstQuarantine, None));
        }
        if after.open >= settings.depth {
            news.push((Alert::Depth, None));
        }
        let limit = Duration::from_secs(settings.age_h.saturating_mul(3_600));
        if !limit.is_zero() && after.oldest.is_some_and(|oldest| oldest >= limit) {
            news.push((Alert::Age, None));
        }
        news.retain(|alert| self.told.insert(*alert));
        news
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings() -> Settings {
        Settings { depth: 10, age_h: 72, command: String::new() }
    }

    fn moment(classes: &[Class], open: u64, quarantined: u64, hours: u64) -> Moment {
        let oldest = (open > 0).then(|| Duration::from_secs(hours * 3_600));
        Moment { classes: classes.iter().copied().collect(), open, quarantined, oldest }
    }

    #[test]
    fn each_is_told_once_when_it_becomes_true() {
        let (mut alerts, none) = (Alerts::default(), Moment::default());
        let mut look = |before: &Moment, after: &Moment| alerts.look(&settings(), before, after);
        let first = moment(&[Class::TooLong], 1, 0, 0);
        assert_eq!(look(&none, &none), []);
        assert_eq!(look(&none, &first), [(Alert::FirstOfClass, Some(Class::TooLong))]);
        assert_eq!(look(&first, &moment(&[Class::TooLong], 9, 0, 71)), []);
        assert_eq!(
            look(&none, &first),
            [],
            "discarded meanwhile, and once more: not a second time in one run"
        );
        let full = moment(&[Class::TooLong, Class::ModelFailed], 10, 1, 72);
        let told = look(&first, &full);
        let class = (Alert::FirstOfClass, Some(Class::ModelFailed));
        assert_eq!(told, [class, (Alert::FirstQuarantine, None), (Alert::Depth, None), (Alert::Age, None)]);
        assert_eq!(look(&full, &full), []);
    }

    #[test]
    fn what_lay_there_before_the_run_is_no_first_but_may_be_deep_or_old() {
        let before = moment(&[Class::TooLong], 12, 3, 100);
        let told = Alerts::default().look(&settings(), &before, &before);
        assert_eq!(told, [(Alert::Depth, None), (Alert::Age, None)]);
        let never = Settings { age_h: 0, ..settings() };
        assert_eq!(Alerts::default().look(&never, &before, &before), [(Alert::Depth, None)]);
    }

    proptest! {
        #[test]
        fn nothing_is_told_twice_and_nothing_without_a_cause(
            steps in proptest::collection::vec((0_usize..5, 0_u64..20, 0_u64..3, 0_u64..100), 1..40),
        ) {
            let (mut alerts, mut told) = (Alerts::default(), HashSet::new());
            let mut before = Moment::default();
            for (classes, open, quarantined, hours) in steps {
                let after = moment(&Class::ALL[..classes], open, quarantined, hours);
                for alert in alerts.look(&settings(), &before, &after) {
                    prop_assert!(told.insert(alert), "{:?} twice", alert);
                    let cause = match alert {
                        (Alert::FirstOfClass, Some(class)) => after.classes.contains(&class) && !before.classes.contains(&class),
                        (Alert::FirstOfClass, None) => false,
                        (Alert::FirstQuarantine, _) => quarantined > 0 && before.quarantined == 0,
                        (Alert::Depth, _) => open >= 10,
                        (Alert::Age, _) => open > 0 && hours >= 72,
                    };
                    prop_assert!(cause, "{:?}", alert);
                }
                before = after;
            }
        }
    }
}
