//! How many items a race has seen after each round: as many of each stratum, twice as many round by round; and how many are kept.

/// Documents of all tasks in the first round.
pub const FIRST_DOCUMENTS: usize = 64;
/// Windows of all texts in the first round.
pub const FIRST_WINDOWS: usize = 16;

/// Part of each stratum that is kept for the judgement.
pub const JUDGED: f64 = 0.2;

/// How many of so many items are kept for the judgement.
pub fn judged(items: usize) -> usize {
    (items as f64 * JUDGED).round() as usize
}

/// The rounds of one objective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Items of each stratum, a task or a text, that the race may use.
    strata: Vec<usize>,
    /// Of each stratum in the first round.
    each: usize,
}

impl Schedule {
    /// `first` items of all strata together begin it, as far as a power of two for each allows: so the rounds of races on other
    /// sets of tasks end at the same items.
    pub fn new(strata: Vec<usize>, first: usize) -> Self {
        let each = first.div_ceil(strata.len().max(1)).next_power_of_two();
        Self { strata, each }
    }

    /// Rounds until every stratum has ended.
    pub fn rounds(&self) -> usize {
        let most = self.strata.iter().copied().max().unwrap_or(0);
        (0..).find(|&round| self.reach(round) >= most).map_or(1, |round| round + 1)
    }

    /// Items of each stratum that are seen when a round, counted from 0, has ended.
    pub fn seen(&self, round: usize) -> Vec<usize> {
        self.strata.iter().map(|&items| items.min(self.reach(round))).collect()
    }

    /// The stretches of a stratum that are new in a round, each from and up to which place: those of the first round double, too.
    pub fn new_in(&self, round: usize, stratum: usize) -> Vec<(usize, usize)> {
        let items = self.strata[stratum];
        let first = if round == 0 { 0 } else { self.reach(round - 1) };
        let (mut from, end) = (first.min(items), self.reach(round).min(items));
        let mut stretches = Vec::new();
        while from < end {
            let to = if from == 0 { LEAST } else { 2 * from };
            stretches.push((from, to.min(end)));
            from = to;
        }
        stretches
    }

    fn reach(&self, round: usize) -> usize {
        u32::try_from(round).ok().and_then(|round| self.each.checked_shl(round)).unwrap_or(usize::MAX).max(self.each)
    }
}

/// The first stretch of a stratum: no round is shorter.
const LEAST: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_double_until_every_stratum_has_ended() {
        let schedule = Schedule::new(vec![100, 30], 16);
        assert_eq!(schedule.rounds(), 5);
        let seen: Vec<Vec<usize>> = (0..5).map(|round| schedule.seen(round)).collect();
        assert_eq!(seen, [vec![8, 8], vec![16, 16], vec![32, 30], vec![64, 30], vec![100, 30]]);
        assert_eq!(Schedule::new(vec![5], 64).rounds(), 1);
    }

    #[test]
    fn stretches_meet_and_are_the_same_however_many_tasks_there_are() {
        let schedule = Schedule::new(vec![100, 30], 16);
        assert_eq!(schedule.new_in(0, 0), [(0, 4), (4, 8)]);
        assert_eq!(schedule.new_in(2, 1), [(16, 30)]);
        assert_eq!(schedule.new_in(3, 1), []);
        assert_eq!(schedule.new_in(4, 0), [(64, 100)]);
        // With one task more of its items come in the first round.
        assert_eq!(Schedule::new(vec![100], 16).new_in(0, 0), [(0, 4), (4, 8), (8, 16)]);
    }
}
