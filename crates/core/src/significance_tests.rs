//! Compares the significance tests with values computed by hand or in Python.

use super::*;

#[track_caller]
fn assert_close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-12 * expected.abs(), "found {found}, expected {expected}");
}

#[test]
fn mcnemar_matches_hand_computed_binomial() {
    // Expected: 2 (1 + 12 + 66) / 2¹².
    assert_close(mcnemar_exact(10, 2), 0.038_574_218_75);
    assert_close(mcnemar_exact(2, 10), 0.038_574_218_75);
    // Expected: 2 / 2⁶, and 2 (1 + 5) / 2⁵.
    assert_close(mcnemar_exact(0, 6), 0.031_25);
    assert_close(mcnemar_exact(1, 4), 0.375);
    assert_eq!(mcnemar_exact(0, 0), 1.0);
    assert_eq!(mcnemar_exact(7, 7), 1.0);
    assert_close(mcnemar_exact(4, 5), 1.0);
}

#[test]
fn mcnemar_is_exact_for_thousands_of_questions() {
    // Expected values from exact integer sums in Python: 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n.
    assert_close(mcnemar_exact(4800, 5200), 6.593515598672442e-05);
    assert_close(mcnemar_exact(1000, 1200), 2.1817026407914712e-05);
    assert_close(mcnemar_exact(100, 900), 1.3403435580012592e-161);
    // Underflow gives zero instead of an error.
    assert_eq!(mcnemar_exact(0, 1_000_000), 0.0);
    let huge = mcnemar_exact(5_000_000_000, 5_000_100_000);
    // The normal approximation has z = (100000 − 1) / √10¹⁰ ≈ 1, for which the two-sided tail is 0.3173.
    assert!((huge - 0.3173).abs() < 1e-4, "{huge}");
}

#[test]
fn mcnemar_p_value_falls_as_counts_diverge() {
    let p_values: Vec<f64> = (0..=500).map(|few| mcnemar_exact(few, 1000 - few)).collect();
    assert!(p_values.windows(2).all(|pair| pair[0] < pair[1] || pair[1] == 1.0));
    assert!(p_values.iter().all(|p| (0.0..=1.0).contains(p)));
}

fn discordant_task(questions: u64, only_a: u64, only_b: u64) -> DiscordantCounts {
    DiscordantCounts { questions, only_a, only_b }
}

#[test]
fn sign_flips_match_mcnemar_for_equally_sized_tasks() {
    assert_close(sign_flip_test(&[discordant_task(50, 10, 2)], 10, 0), mcnemar_exact(10, 2));
    assert_close(
        sign_flip_test(&[discordant_task(50, 7, 2), discordant_task(50, 3, 0), discordant_task(9, 0, 0)], 10, 0),
        mcnemar_exact(10, 2),
    );
    assert_eq!(sign_flip_test(&[discordant_task(50, 0, 0), discordant_task(9, 0, 0)], 10, 0), 1.0);
}

#[test]
fn few_sign_flips_are_enumerated_exactly() {
    // The weights are 1/2 and 1/3, and the observed difference is 1/2 + 1/3. Two of the four assignments are as
    // extreme.
    assert_close(sign_flip_test(&[discordant_task(2, 1, 0), discordant_task(3, 1, 0)], 10, 0), 0.5);
    // The observed difference is 1/2 − 1/3, and all four assignments are at least as extreme.
    assert_close(sign_flip_test(&[discordant_task(2, 1, 0), discordant_task(3, 0, 1)], 10, 0), 1.0);
    // The weights are 1/2, 1/2 and 1/3, and the last question favors the other variant: |1 − 1/3| = 2/3. Of the 8
    // assignments, the 4 with sums ±1 ± 1/3 are as extreme, and those with sums ±1/3 are not.
    assert_close(sign_flip_test(&[discordant_task(2, 2, 0), discordant_task(3, 0, 1)], 10, 0), 0.5);
}

#[test]
fn large_task_does_not_dominate_the_mean_of_tasks() {
    // Eight tasks of 100 questions each gain 6 questions, and one task of 10,000 questions loses 200. The mean over
    // tasks gains 5.1 points, whereas the total over questions loses 152.
    let mut tasks = vec![discordant_task(100, 8, 2); 8];
    tasks.push(discordant_task(10_000, 300, 500));
    let p = sign_flip_test(&tasks, 10_000, 0);
    assert!(p < 1e-3, "{p}");
    // The pooled test compares totals over questions, so it detects the loss.
    assert!(mcnemar_exact(300 + 64, 500 + 16) < 1e-6);
}

#[test]
fn sampled_sign_flips_are_seeded_and_near_the_exact_test() {
    let tasks = [discordant_task(100, 9, 4), discordant_task(150, 12, 6), discordant_task(210, 3, 7)];
    let exact = sign_flip_test(&tasks, 10, 0);
    // Slightly different sizes give too many distinct outcomes to enumerate.
    let unequal_tasks: Vec<DiscordantCounts> =
        (0..12).map(|seed| discordant_task(1_000 + seed, 6 + seed % 3, 4)).collect();
    assert_eq!(sample_flips(1, &unequal_tasks), sample_flips(1, &unequal_tasks));
    assert!((sample_flips(1, &unequal_tasks) - sample_flips(2, &unequal_tasks)).abs() < 0.02);
    // With nearly equal weights, the result is close to McNemar's test on all questions.
    let (a, b) = unequal_tasks.iter().fold((0, 0), |(a, b), discordant| (a + discordant.only_a, b + discordant.only_b));
    assert!(
        (sample_flips(1, &unequal_tasks) - mcnemar_exact(a, b)).abs() < 0.02,
        "{} and {}",
        sample_flips(1, &unequal_tasks),
        mcnemar_exact(a, b)
    );
    // Expected value from exact integer sums in Python: comb(13, i) · comb(18, j) · comb(10, k), summed over the
    // extreme assignments and divided by 2⁴¹.
    assert_close(exact, 0.14217691735848348);
}

fn sample_flips(seed: u64, unequal_tasks: &[DiscordantCounts]) -> f64 {
    sign_flip_test(unequal_tasks, 20_000, seed)
}

#[test]
fn binomial_tail_matches_hand_computed_values() {
    // At least 8 heads in 10 flips, which is as likely as at most 2: (1 + 10 + 45) / 2¹⁰.
    assert_close(lower_tail(2, 10), 56.0 / 1024.0);
    // Expected: (1 + 10 + 45 + 120 + 210 + 252) / 2¹⁰, 1 / 2⁴, and (1 + 4) / 2⁴.
    assert_close(lower_tail(5, 10), 638.0 / 1024.0);
    assert_close(lower_tail(0, 4), 1.0 / 16.0);
    assert_close(lower_tail(1, 4), 5.0 / 16.0);
    assert_eq!(lower_tail(0, 0), 1.0);
    // Expected: the last terms of the sums above, and both ends.
    assert_close(heads_probability(2, 10), 45.0 / 1024.0);
    assert_close(heads_probability(5, 10), 252.0 / 1024.0);
    assert_close(heads_probability(1, 4), 4.0 / 16.0);
    assert_close(heads_probability(0, 4), 1.0 / 16.0);
    assert_close(heads_probability(4, 4), 1.0 / 16.0);
}

#[test]
fn binomial_probabilities_sum_to_one() {
    for n in [1_u64, 7, 500, 3270] {
        let sum: f64 = (0..=n).map(|heads| heads_probability(heads, n)).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{n}: {sum}");
        // The distribution is symmetric, so both tails are equal.
        for k in (0..n.div_ceil(2)).step_by(1 + usize::try_from(n).unwrap() / 80) {
            let middle: f64 = (k + 1..n - k).map(|heads| heads_probability(heads, n)).sum();
            let sum = 2.0 * lower_tail(k, n) + middle;
            assert!((sum - 1.0).abs() < 1e-12, "{k} of {n}: {sum}");
        }
    }
}

/// Returns losses that vary by about 1 between windows, and whose paired differences are `shift` plus a small
/// variation.
fn losses(shift: f64) -> (Vec<f64>, Vec<f64>) {
    let b: Vec<f64> = (0..200).map(|i| 3.0 + (f64::from(i) * 0.7).sin()).collect();
    let a = b.iter().zip(0..).map(|(b, i)| b + shift + 0.1 * (f64::from(i) * 1.3).cos()).collect();
    (a, b)
}

#[test]
fn paired_bootstrap_detects_difference_despite_spread() {
    let (a, b) = losses(0.05);
    let interval = paired_bootstrap(&a, &b, 2000, 1).unwrap();
    assert!(interval.low > 0.0 && interval.low < interval.difference && interval.difference < interval.high);
    // The differences have a standard deviation of 0.1 / √2, so an interval of ±1.96 standard errors over 200 windows
    // is 0.0196 wide.
    assert!((interval.high - interval.low - 0.0196).abs() < 0.003, "{interval:?}");
    // No resampled difference is on the other side of zero.
    assert_close(interval.p, 2.0 / 2001.0);
}

#[test]
fn interval_contains_zero_without_a_mean_difference() {
    let (a, b) = losses(0.0);
    let interval = paired_bootstrap(&a, &b, 2000, 1).unwrap();
    assert!(interval.low < 0.0 && interval.high > 0.0 && interval.p > 0.3, "{interval:?}");
    let same = paired_bootstrap(&b, &b, 100, 1).unwrap();
    assert_eq!(same, Interval { difference: 0.0, low: 0.0, high: 0.0, p: 1.0 });
}

#[test]
fn swapping_variants_mirrors_the_interval() {
    let (a, b) = losses(0.003);
    let one = paired_bootstrap(&a, &b, 999, 5).unwrap();
    let other = paired_bootstrap(&b, &a, 999, 5).unwrap();
    assert!((one.low + other.high).abs() < 1e-12 && (one.high + other.low).abs() < 1e-12);
    assert_eq!(one.p, other.p);
}

#[test]
fn bootstrap_is_determined_by_its_seed() {
    let (a, b) = losses(0.01);
    let [first, again, other] = [3, 3, 4].map(|seed| paired_bootstrap(&a, &b, 300, seed).unwrap());
    assert_eq!(first, again);
    assert_ne!(first, other);
}

#[test]
fn quantile_interpolates_between_neighbors() {
    let sorted = [0.0, 10.0, 20.0, 30.0, 40.0];
    for (fraction, expected) in [(0.0, 0.0), (0.025, 1.0), (0.5, 20.0), (0.975, 39.0), (1.0, 40.0)] {
        assert_close(quantile(&sorted, fraction), expected);
    }
    assert_eq!(quantile(&[3.0], 0.975), 3.0);
}

#[test]
fn unpaired_or_nonfinite_losses_are_rejected() {
    for (a, b, samples, word) in [
        (&[1.0, 2.0][..], &[1.0][..], 10, "2 and 1"),
        (&[], &[], 10, "0 and 0"),
        (&[1.0], &[2.0], 0, "samples"),
        (&[1.0, f64::NAN], &[2.0, 2.0], 10, "window 1"),
        (&[f64::INFINITY], &[f64::INFINITY], 10, "window 0"),
    ] {
        let error = paired_bootstrap(a, b, samples, 1).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(word), "{error}");
    }
}
