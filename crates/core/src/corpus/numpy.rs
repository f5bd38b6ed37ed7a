//! Port of NumPy's `default_rng`.

/// Random number generator that reproduces `numpy.random.default_rng(seed)`: PCG64 (XSL-RR) seeded by `SeedSequence`.
///
/// The streaming shuffle of Hugging Face's `datasets` uses this generator, so a seed must select the same rows here.
/// Source: NumPy 2, `bit_generator.pyx` (`SeedSequence`), `pcg64.c`, `distributions.c` (Lemire's bounded integers, and
/// `random_interval`, which `Generator.shuffle` uses for lists).
#[derive(Debug, Clone)]
pub(super) struct NumpyRandom {
    state: u128,
    increment: u128,
    /// Buffered upper half of a 64-bit draw whose lower half has already been returned.
    buffered_half: Option<u32>,
}

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

impl NumpyRandom {
    pub(super) fn new(seed: u64) -> Self {
        let [a, b, c, d] = SeedSequence::new(seed).generate_words();
        let mut new = Self { state: 0, increment: join_words(c, d) << 1 | 1, buffered_half: None };
        new.step();
        new.state = new.state.wrapping_add(join_words(a, b));
        new.step();
        new
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    fn next64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// Returns 32 random bits: the lower half of a 64-bit draw, and its upper half on the next call.
    fn next32(&mut self) -> u32 {
        self.buffered_half.take().unwrap_or_else(|| {
            let both = self.next64();
            self.buffered_half = Some((both >> 32) as u32);
            both as u32
        })
    }

    /// Draws one value like `integers(0, count, size=…)`: an integer below `count`. `count` must be at least 1.
    pub(super) fn draw_below(&mut self, count: u32) -> u32 {
        // A range of one value needs no draw.
        if count <= 1 {
            return 0;
        }
        let mut product = u64::from(self.next32()) * u64::from(count);
        if (product as u32) < count {
            let threshold = count.wrapping_neg() % count;
            while (product as u32) < threshold {
                product = u64::from(self.next32()) * u64::from(count);
            }
        }
        (product >> 32) as u32
    }

    /// Implements `Generator.shuffle` for a list.
    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let other = self.draw_up_to(last as u32) as usize;
            list.swap(last, other);
        }
    }

    /// Implements `random_interval`: draws an integer up to `last`. Masks the draw and rejects larger values, whereas
    /// [`draw_below`](Self::draw_below) scales the draw.
    fn draw_up_to(&mut self, last: u32) -> u32 {
        let mask = u32::MAX >> last.leading_zeros().min(31);
        loop {
            let value = self.next32() & mask;
            if value <= last {
                return value;
            }
        }
    }
}

fn join_words(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// Entropy pool that NumPy derives from a seed.
struct SeedSequence([u32; 4]);

/// Hash function whose constant changes with every word.
struct Hasher {
    constant: u32,
    multiplier: u32,
}

impl Hasher {
    fn hash(&mut self, value: u32) -> u32 {
        let value = value ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.multiplier);
        xor_high_half(value.wrapping_mul(self.constant))
    }
}

fn xor_high_half(value: u32) -> u32 {
    value ^ value >> 16
}

impl SeedSequence {
    fn new(seed: u64) -> Self {
        let mut hasher = Hasher { constant: 0x43b0_d7e5, multiplier: 0x931e_8875 };
        // Words of the seed, lowest first, padded with zeros.
        let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(|word| hasher.hash(word));
        for from in 0..pool.len() {
            for to in (0..pool.len()).filter(|to| *to != from) {
                let (one, other) =
                    (pool[to].wrapping_mul(0xca01_f9dd), hasher.hash(pool[from]).wrapping_mul(0x4973_f715));
                pool[to] = xor_high_half(one.wrapping_sub(other));
            }
        }
        Self(pool)
    }

    /// Implements `generate_state(4, uint64)`.
    fn generate_words(&self) -> [u64; 4] {
        let mut hasher = Hasher { constant: 0x8b51_f9dd, multiplier: 0x58f3_8ded };
        std::array::from_fn(|word| {
            let low = u64::from(hasher.hash(self.0[2 * word % 4]));
            low | u64::from(hasher.hash(self.0[(2 * word + 1) % 4])) << 32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values from `numpy.random.default_rng(seed)` in NumPy 2.4.6. The orders of eight shards are taken from
    /// the reference data `c4_stream`.
    #[test]
    fn shuffle_matches_numpy() {
        assert_eq!(shuffle_range(0, 8), [2, 4, 3, 6, 5, 0, 1, 7]);
        assert_eq!(shuffle_range(1, 8), [5, 0, 1, 4, 2, 6, 3, 7]);
        assert_eq!(shuffle_range(0, 1024)[..12], [84, 752, 296, 982, 863, 470, 986, 2, 357, 643, 356, 36]);
        assert_eq!(shuffle_range(3, 1024)[..12], [200, 103, 733, 228, 425, 750, 229, 351, 105, 839, 646, 401]);
        assert_eq!(NumpyRandom::new(7).draw_below(1), 0);
        // Expected values from NumPy: `numpy.random.default_rng(0).integers(0, 10, 5)`.
        let mut random = NumpyRandom::new(0);
        assert_eq!([0; 5].map(|_| random.draw_below(10)), [8, 6, 5, 2, 3]);
    }

    fn shuffle_range(seed: u64, count: u32) -> Vec<u32> {
        let mut list: Vec<u32> = (0..count).collect();
        NumpyRandom::new(seed).shuffle(&mut list);
        list
    }
}
