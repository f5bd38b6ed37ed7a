//! Draws that are the same on every machine: one twister, integer arithmetic only.

use rand_mt::Mt64;

/// A stream of draws. Two streams with different keys have nothing to do with each other.
#[derive(Debug, Clone)]
pub(super) struct Draw {
    twister: Mt64,
}

impl Draw {
    pub(super) fn new(key: &[u64]) -> Self {
        Self { twister: Mt64::new_with_key(key.iter().copied()) }
    }

    /// A whole number below `count`, which is not 0.
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

    /// `count` different numbers below `limit`, in any order.
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

/// The numbers below a limit as cards: each comes once before any comes again. This keeps counts even.
#[derive(Debug, Clone)]
pub(super) struct Deck {
    cards: Vec<usize>,
    next: usize,
}

impl Deck {
    pub(super) fn new(limit: usize) -> Self {
        Self { cards: (0..limit).collect(), next: limit }
    }

    /// A deck in which the number `i` is there `weights[i]` times.
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
}
