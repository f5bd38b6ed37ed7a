//! Port of CPython's `random` module.

use std::collections::HashSet;

use rand_mt::Mt;

use crate::error::{Error, Result};

/// Random number generator that reproduces Python's `random.seed(n)`, `random.randint(low, high)` and related calls.
///
/// The reference code of the Ghosted Layers paper draws its calibration windows with these calls, so a seed must select
/// the same windows here.
///
/// Source: CPython 3.11, `Modules/_randommodule.c` (`random_seed`, `init_by_array`, `getrandbits`) and `Lib/random.py`
/// (`randint`, `_randbelow_with_getrandbits`), unchanged since Python 3.2.
#[derive(Debug, Clone)]
pub struct PythonRandom {
    twister: Mt,
}

impl PythonRandom {
    /// Seeds the generator like `random.seed(seed)` with an integer.
    pub fn new(seed: u64) -> Self {
        let low = (seed & u64::from(u32::MAX)) as u32;
        let high = (seed >> 32) as u32;
        // CPython splits the seed into 32-bit words, lowest first, and drops leading zero words unless the seed is 0.
        let twister = if high == 0 { Mt::new_with_key([low]) } else { Mt::new_with_key([low, high]) };
        Self { twister }
    }

    /// Implements `random.randint(low, high)`: returns an integer from `low` to `high` inclusive.
    ///
    /// # Errors
    /// Fails if `high` is below `low` (Python raises `ValueError`).
    pub fn randint(&mut self, low: u64, high: u64) -> Result<u64> {
        let Some(last) = high.checked_sub(low) else {
            return Err(Error::bad_input("cannot draw from an empty range")
                .expected("a minimum that does not exceed the maximum")
                .found(format!("minimum {low}, maximum {high}")));
        };
        // The full range of `u64` has 2^64 values, a count that overflows `u64`.
        let count = u128::from(last) + 1;
        let bits = u128::BITS - count.leading_zeros();
        loop {
            // CPython uses rejection sampling, so rejected draws also advance the generator, even for a range of one
            // value.
            let value = self.draw_bits(bits);
            if value <= u128::from(last) {
                return Ok(low + value as u64);
            }
        }
    }

    /// Implements `random.random()`: returns a number in [0, 1) with 53 random bits.
    pub fn random(&mut self) -> f64 {
        let high = self.draw_bits(27) as f64;
        let low = self.draw_bits(26) as f64;
        (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0
    }

    /// Implements `random.sample(range(count), size)`: returns distinct indices in the order drawn.
    ///
    /// # Errors
    /// Fails if `size` exceeds `count`.
    pub fn sample(&mut self, count: usize, size: usize) -> Result<Vec<usize>> {
        if size > count {
            return Err(Error::bad_input("sample size exceeds the number of values")
                .expected(format!("at most {count}"))
                .found(size));
        }
        // CPython draws from a list of all indices if the list is smaller than a set of the drawn indices.
        let mut set_size = 21;
        if size > 5 {
            let mut table = 1;
            while table < 3 * size {
                table *= 4;
            }
            set_size += table;
        }
        let mut drawn = Vec::with_capacity(size);
        if count <= set_size {
            let mut pool: Vec<usize> = (0..count).collect();
            for left in (count - size + 1..=count).rev() {
                let index = self.randint(0, left as u64 - 1)? as usize;
                drawn.push(pool[index]);
                pool[index] = pool[left - 1];
            }
            return Ok(drawn);
        }
        let mut seen = HashSet::new();
        while drawn.len() < size {
            let index = self.randint(0, count as u64 - 1)? as usize;
            if seen.insert(index) {
                drawn.push(index);
            }
        }
        Ok(drawn)
    }

    /// Implements `random.getrandbits(count)` for 1 to 65 bits. Fills the value with 32-bit words, lowest first, and
    /// uses only the highest bits of the last word.
    fn draw_bits(&mut self, count: u32) -> u128 {
        let mut value = 0;
        let mut filled = 0;
        while filled < count {
            let missing = (count - filled).min(u32::BITS);
            let word = self.twister.next_u32() >> (u32::BITS - missing);
            value |= u128::from(word) << filled;
            filled += missing;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw_numbers(seed: u64, low: u64, high: u64) -> Vec<u64> {
        let mut random = PythonRandom::new(seed);
        (0..6).map(|_| random.randint(low, high).unwrap()).collect()
    }

    /// Expected values from Python 3.11: `r = random.Random(seed); [r.randint(low, high) for _ in range(6)]`.
    #[test]
    fn random_draws_match_cpython() {
        assert_eq!(draw_numbers(0, 0, 9), [6, 6, 0, 4, 8, 7]);
        assert_eq!(draw_numbers(1, 0, 999), [137, 582, 867, 821, 782, 64]);
        assert_eq!(draw_numbers(42, 0, 356317), [335243, 58369, 13112, 144194, 128393, 117026]);
        assert_eq!(
            draw_numbers(2, 10, 1 << 31),
            [2053067971, 1853513174, 2035444039, 1823332334, 121443161, 196676851]
        );
        assert_eq!(
            draw_numbers(0, 0, u64::from(u32::MAX)),
            [3626764237, 1806341205, 2195908194, 2046968324, 3900315155, 2167613558]
        );
        assert_eq!(
            draw_numbers(0, 0, 1 << 40),
            [849735321549, 87705687125, 1067347797602, 788025983492, 480641685011, 307110291574]
        );
        assert_eq!(draw_numbers(u64::from(u32::MAX), 0, 999), [650, 634, 208, 220, 621, 534]);
        assert_eq!(draw_numbers(1 << 32, 0, 999), [115, 359, 427, 957, 17, 23]);
        assert_eq!(
            draw_numbers(u64::MAX, 5, 1_000_000_000_000),
            [270676680323, 680056941125, 499126599766, 105721161160, 991792005369, 843407212784]
        );
        assert_eq!(
            draw_numbers(7, 0, u64::MAX),
            [
                17485029721327973432,
                12007621696699967246,
                691672907343361484,
                7713914763314685786,
                17482144350526720241,
                10801332806156616911
            ]
        );
        assert_eq!(
            draw_numbers(7, 0, 1 << 63),
            [
                7283207964119141687,
                890727360438182992,
                1736392818365009963,
                3960482443532127989,
                1585446675937841368,
                7713914763314685786
            ]
        );
    }

    /// Expected values from Python 3.11: `random.Random(1234)`, `sample(range(100), 5)` twice, `sample(range(10), 3)`,
    /// `sample(range(1000), 8)`, then `random()`.
    #[test]
    fn random_samples_match_cpython() {
        let mut random = PythonRandom::new(1234);
        assert_eq!(random.sample(100, 5).unwrap(), [99, 56, 14, 0, 11]);
        assert_eq!(random.sample(100, 5).unwrap(), [74, 4, 85, 88, 10]);
        assert_eq!(random.sample(10, 3).unwrap(), [1, 5, 3]);
        assert_eq!(random.sample(1000, 8).unwrap(), [17, 31, 807, 16, 354, 663, 638, 495]);
        assert!((random.random() - 0.6158156951036152).abs() == 0.0);
        assert!(random.sample(3, 4).is_err());
    }

    #[test]
    fn single_value_range_advances_the_generator() {
        let mut random = PythonRandom::new(0);
        assert_eq!(random.randint(7, 7).unwrap(), 7);
        // Python's `random.Random(0)` returns this value for `randint(0, 999)` after `randint(7, 7)`.
        assert_eq!(random.randint(0, 999).unwrap(), 776);
    }

    #[test]
    fn empty_range_is_an_error() {
        let error = PythonRandom::new(0).randint(3, 2).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("minimum 3, maximum 2"), "{error}");
    }
}
