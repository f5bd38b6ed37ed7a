//! Wrong choices that cannot be told from right ones by what they are: each is the right one elsewhere, as often.

use super::draw::{Deck, Draw};

/// For each right choice, `count` wrong ones: different from it and from each other. `fits(item, other)` says whether
/// the right choice of item `other` may stand as a wrong one of `item`.
///
/// Each column of wrong choices is the right ones in another order, mended by swaps where two would be equal.
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
            // With no swap left, whichever choice fits: a slight tilt is better than two equal choices.
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

/// Puts the right choice among the wrong ones, each place equally often.
#[derive(Debug)]
pub(super) struct Seats {
    places: Deck,
}

impl Seats {
    pub(super) fn new(choices: usize) -> Self {
        Self { places: Deck::new(choices) }
    }

    /// All choices, and the place of the right one.
    pub(super) fn seat(&mut self, right: &str, wrong: &[String], draw: &mut Draw) -> (Vec<String>, usize) {
        let place = self.places.draw(draw);
        let mut choices = wrong.to_vec();
        choices.insert(place.min(wrong.len()), right.to_owned());
        (choices, place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
