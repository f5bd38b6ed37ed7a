//! Random draws that are the same on every machine (Mersenne Twister, integer arithmetic only), and the selection and
//! order of choices.

use rand_mt::Mt64;

/// Stream of draws. Streams with different keys are independent.
#[derive(Debug, Clone)]
pub(super) struct Draw {
    twister: Mt64,
}

impl Draw {
    pub(super) fn new(key: &[u64]) -> Self {
        Self { twister: Mt64::new_with_key(key.iter().copied()) }
    }

    /// Draws an integer below `count`, which is not 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        // The high half of the product is uniform up to 1 part in 2^64 / count.
        ((u128::from(self.twister.next_u64()) * count as u128) >> 64) as usize
    }

    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// Draws `count` distinct numbers below `limit`, in random order.
    pub(super) fn several(&mut self, count: usize, limit: usize) -> Vec<usize> {
        let mut drawn: Vec<usize> = Vec::with_capacity(count);
        while drawn.len() < count.min(limit) {
            let number = self.below(limit);
            if !drawn.contains(&number) {
                drawn.push(number);
            }
        }
        drawn
    }
}

/// Deck of the numbers below a limit: each is drawn once before any is drawn again, which keeps counts balanced.
#[derive(Debug, Clone)]
pub(super) struct Deck {
    cards: Vec<usize>,
    next: usize,
}

impl Deck {
    pub(super) fn new(limit: usize) -> Self {
        Self { cards: (0..limit).collect(), next: limit }
    }

    /// Creates a deck that contains the number `i` `weights[i]` times.
    pub(super) fn weighted(weights: &[usize]) -> Self {
        let cards: Vec<usize> =
            weights.iter().enumerate().flat_map(|(number, weight)| std::iter::repeat_n(number, *weight)).collect();
        Self { next: cards.len(), cards }
    }

    pub(super) fn draw(&mut self, draw: &mut Draw) -> usize {
        if self.next >= self.cards.len() {
            draw.shuffle(&mut self.cards);
            self.next = 0;
        }
        self.next += 1;
        self.cards[self.next - 1]
    }
}

/// Returns `count` wrong choices for each correct one, distinct from it and from each other. `fits(item, other)`
/// returns whether the correct choice of `other` may be a wrong choice of `item`.
///
/// Each column of wrong choices is a permutation of the correct ones, with swaps that resolve duplicates.
pub(super) fn distractors(
    right: &[String],
    count: usize,
    fits: impl Fn(usize, usize) -> bool,
    draw: &mut Draw,
) -> Vec<Vec<String>> {
    let items = right.len();
    let mut columns: Vec<Vec<usize>> = Vec::with_capacity(count);
    for _ in 0..count {
        let ok = |columns: &[Vec<usize>], item: usize, other: usize| {
            right[item] != right[other]
                && fits(item, other)
                && columns.iter().all(|column| right[column[item]] != right[other])
        };
        let mut column: Vec<usize> = (0..items).collect();
        draw.shuffle(&mut column);
        for item in 0..items {
            if ok(&columns, item, column[item]) {
                continue;
            }
            let start = draw.below(items);
            let swap = (0..items)
                .map(|step| (start + step) % items)
                .find(|at| ok(&columns, item, column[*at]) && (*at > item || ok(&columns, *at, column[item])));
            // If no swap works, use any choice that fits: a slight imbalance is better than duplicate choices.
            match swap {
                Some(at) => column.swap(item, at),
                None => {
                    if let Some(other) = (0..items).find(|other| ok(&columns, item, *other)) {
                        column[item] = other;
                    }
                }
            }
        }
        columns.push(column);
    }
    (0..items).map(|item| columns.iter().map(|column| right[column[item]].clone()).collect()).collect()
}

/// Shuffler of correct choices among wrong ones, with each position equally often.
#[derive(Debug)]
pub(super) struct Seats {
    places: Deck,
}

impl Seats {
    pub(super) fn new(choices: usize) -> Self {
        Self { places: Deck::new(choices) }
    }

    /// Returns all choices, and the position of the correct one.
    pub(super) fn seat(&mut self, right: &str, wrong: &[String], draw: &mut Draw) -> (Vec<String>, usize) {
        let position = self.places.draw(draw);
        let mut choices = wrong.to_vec();
        choices.insert(position.min(wrong.len()), right.to_owned());
        (choices, position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_the_same_everywhere() {
        let mut draw = Draw::new(&[0, 1]);
        let numbers: Vec<usize> = (0..8).map(|_| draw.below(100)).collect();
        let mut again = Draw::new(&[0, 1]);
        assert_eq!(numbers, (0..8).map(|_| again.below(100)).collect::<Vec<_>>());
        let mut other = Draw::new(&[0, 2]);
        assert_ne!(numbers, (0..8).map(|_| other.below(100)).collect::<Vec<_>>());
        assert!(numbers.iter().all(|number| *number < 100));
    }

    #[test]
    fn a_deck_gives_each_card_equally_often() {
        let mut draw = Draw::new(&[3]);
        let mut deck = Deck::weighted(&[1, 0, 3]);
        let mut counts = [0; 3];
        for _ in 0..40 {
            counts[deck.draw(&mut draw)] += 1;
        }
        assert_eq!(counts, [10, 0, 30]);
        let mut drawn = draw.several(5, 5);
        drawn.sort_unstable();
        assert_eq!(drawn, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn each_choice_is_wrong_as_often_as_its_rightness_asks() {
        let mut draw = Draw::new(&[9]);
        let right: Vec<String> = (0..60).map(|item| format!("{}", item % 6)).collect();
        let wrong = distractors(&right, 3, |_, _| true, &mut draw);
        for value in 0..6 {
            let value = value.to_string();
            let count = wrong.iter().flatten().filter(|other| **other == value).count();
            assert!((27..=33).contains(&count), "{count}");
        }
        for (right, wrong) in right.iter().zip(&wrong) {
            let mut all = wrong.clone();
            all.push(right.clone());
            all.sort();
            all.dedup();
            assert_eq!(all.len(), 4);
        }
    }
}
