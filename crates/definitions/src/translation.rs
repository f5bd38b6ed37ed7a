//! Corpus-level BLEU and chrF with the defaults of sacrebleu 2.x: tokenizer `13a`, smoothing `exp`, chrF2 with
//! character 6-grams.

use ghostlab_core::tasks::python::{is_space, words};
use std::collections::HashMap;
use std::sync::LazyLock;

use fancy_regex::Regex;

/// Maximum n-gram order for BLEU.
const MAX_WORD_NGRAM: usize = 4;
/// Maximum character n-gram order for chrF.
const MAX_CHARACTER_NGRAM: usize = 6;

/// Computes BLEU (0 to 100) for `(reference, text)` pairs.
pub fn bleu(pairs: &[(&str, &str)]) -> f64 {
    let mut length = 0usize;
    let mut reference_length = 0usize;
    let mut correct = [0usize; MAX_WORD_NGRAM];
    let mut total = [0usize; MAX_WORD_NGRAM];
    for (reference, text) in pairs {
        let reference = tokenize_13a(reference);
        let text = tokenize_13a(text);
        let (reference, text): (Vec<&str>, Vec<&str>) = (words(&reference).collect(), words(&text).collect());
        length += text.len();
        reference_length += reference.len();
        for n in 1..=MAX_WORD_NGRAM {
            let expected = count_ngrams(&reference, n);
            for (gram, count) in count_ngrams(&text, n) {
                total[n - 1] += count;
                correct[n - 1] += count.min(expected.get(gram).copied().unwrap_or(0));
            }
        }
    }
    if correct.iter().all(|count| *count == 0) {
        return 0.0;
    }
    let penalty = if length < reference_length { (1.0 - reference_length as f64 / length as f64).exp() } else { 1.0 };
    let mut precisions = [0.0; MAX_WORD_NGRAM];
    let mut smooth = 1.0;
    for n in 0..MAX_WORD_NGRAM {
        if total[n] == 0 {
            break;
        }
        precisions[n] = if correct[n] == 0 {
            smooth *= 2.0;
            100.0 / (smooth * total[n] as f64)
        } else {
            100.0 * correct[n] as f64 / total[n] as f64
        };
    }
    // Like sacrebleu, use this number as the logarithm of 0.
    let logarithms = precisions.iter().map(|p| if *p == 0.0 { -9_999_999_999.0 } else { p.ln() });
    penalty * (logarithms.sum::<f64>() / MAX_WORD_NGRAM as f64).exp()
}

fn count_ngrams<T: std::hash::Hash + Eq>(items: &[T], n: usize) -> HashMap<&[T], usize> {
    let mut counts = HashMap::new();
    for gram in items.windows(n) {
        *counts.entry(gram).or_insert(0) += 1;
    }
    counts
}

/// Implements the tokenizer `13a` of mteval-v13a.pl.
fn tokenize_13a(text: &str) -> String {
    static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        let rules = [
            (r"([\{-\~\[-\` -\&\(-\+\:-\@\/])", " $1 "),
            (r"([^0-9])([\.,])", "$1 $2 "),
            (r"([\.,])([^0-9])", " $1 $2"),
            (r"([0-9])(-)", "$1 $2 "),
        ];
        rules.into_iter().filter_map(|(rule, replacement)| Some((Regex::new(rule).ok()?, replacement))).collect()
    });
    let mut line = text.trim_end_matches(is_space).replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    if line.contains('&') {
        line = line.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
    }
    line = format!(" {line} ");
    for (rule, replacement) in &*RULES {
        line = rule.replace_all(&line, *replacement).into_owned();
    }
    line
}

/// Computes chrF2 (0 to 100) for `(reference, text)` pairs.
pub fn chrf(pairs: &[(&str, &str)]) -> f64 {
    let mut counts = [[0usize; 3]; MAX_CHARACTER_NGRAM];
    for (reference, text) in pairs {
        let reference = characters_without_spaces(reference);
        let text = characters_without_spaces(text);
        for (n, [all, wanted, matched]) in (1..).zip(&mut counts) {
            let expected = count_ngrams(&reference, n);
            let found = count_ngrams(&text, n);
            // If the reference is too short for n-grams of this order, the n-grams of the text are not counted.
            *all += if expected.is_empty() { 0 } else { found.values().sum() };
            *wanted += expected.values().sum::<usize>();
            *matched += found.iter().map(|(gram, count)| *count.min(expected.get(gram).unwrap_or(&0))).sum::<usize>();
        }
    }
    let orders: Vec<(f64, f64)> = counts
        .iter()
        .filter(|[all, wanted, _]| *all > 0 && *wanted > 0)
        .map(|[all, wanted, matched]| (*matched as f64 / *all as f64, *matched as f64 / *wanted as f64))
        .collect();
    if orders.is_empty() {
        return 0.0;
    }
    let precision = mean_over_orders(|order| order.0, &orders);
    let recall = mean_over_orders(|order| order.1, &orders);
    if precision + recall == 0.0 { 0.0 } else { 100.0 * (5.0 * precision * recall / (4.0 * precision + recall)) }
}

fn mean_over_orders(select: fn(&(f64, f64)) -> f64, orders: &[(f64, f64)]) -> f64 {
    orders.iter().map(select).sum::<f64>() / orders.len() as f64
}

fn characters_without_spaces(text: &str) -> Vec<char> {
    text.chars().filter(|c| !is_space(*c)).collect::<Vec<char>>()
}
