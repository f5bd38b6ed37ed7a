//! What a check comes to.

use std::collections::BTreeSet;

pub use crate::artifact::page::Judgement;

/// A check on one setting, with the numbers that it rests on, or what is missing of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClaimCheck {
    pub(super) outcome: Judgement,
    /// What is, whatever was asked: `ghosted 60.10 > replaceme-ls 59.45`.
    pub(super) shown: String,
}

impl ClaimCheck {
    pub(super) fn known(holds: bool, shown: String) -> Self {
        Self { outcome: if holds { Judgement::Holds } else { Judgement::Fails }, shown }
    }

    pub(super) fn unknown(reason: String) -> Self {
        Self { outcome: Judgement::Unknown, shown: reason }
    }

    /// Both. One that fails decides, whatever the other one is; of what is open only that is shown which leaves it so.
    pub(super) fn and(self, other: Self) -> Self {
        let both = |outcome| Self { outcome, shown: format!("{}; {}", self.shown, other.shown) };
        match (self.outcome, other.outcome) {
            (Judgement::Fails, _) | (_, Judgement::Fails) => both(Judgement::Fails),
            (Judgement::Holds, Judgement::Holds) => both(Judgement::Holds),
            (Judgement::Unknown, Judgement::Unknown) => {
                let mut reasons: Vec<&str> = self.shown.split("; ").chain(other.shown.split("; ")).collect();
                let mut seen = BTreeSet::new();
                reasons.retain(|reason| seen.insert(*reason));
                Self::unknown(reasons.join("; "))
            }
            (Judgement::Unknown, _) => self,
            (_, Judgement::Unknown) => other,
        }
    }

    /// All of them.
    pub(super) fn all(checks: impl IntoIterator<Item = ClaimCheck>) -> Self {
        checks.into_iter().reduce(ClaimCheck::and).unwrap_or_else(|| Self::unknown("nothing is asked".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_fails_decides_and_one_that_is_unknown_leaves_it_open() {
        let both = |a, b| {
            let check = |outcome| ClaimCheck { outcome, shown: String::new() };
            check(a).and(check(b)).outcome
        };
        assert_eq!(both(Judgement::Holds, Judgement::Holds), Judgement::Holds);
        assert_eq!(both(Judgement::Unknown, Judgement::Fails), Judgement::Fails);
        assert_eq!(both(Judgement::Fails, Judgement::Unknown), Judgement::Fails);
        assert_eq!(both(Judgement::Unknown, Judgement::Holds), Judgement::Unknown);
        assert_eq!(both(Judgement::Holds, Judgement::Unknown), Judgement::Unknown);
    }

    #[test]
    fn of_what_is_open_only_what_leaves_it_open_is_shown_and_once() {
        let holds = || ClaimCheck::known(true, "1 < 2".to_owned());
        let open = |reason: &str| ClaimCheck::unknown(reason.to_owned());
        assert_eq!(ClaimCheck::all([holds(), open("noise"), holds(), open("noise")]), open("noise"));
        assert_eq!(ClaimCheck::all([open("noise"), open("noise; no value")]).shown, "noise; no value");
        assert_eq!(ClaimCheck::all([holds(), holds()]).shown, "1 < 2; 1 < 2");
        assert_eq!(
            ClaimCheck::all([open("noise"), ClaimCheck::known(false, "1 > 2".to_owned())]).shown,
            "noise; 1 > 2"
        );
    }
}
