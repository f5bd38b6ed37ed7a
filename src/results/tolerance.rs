//! How far a number may be apart where two engines, float types or devices made it: what the program's tests hold its
//! engines to.

use super::stored::StoredNumber;
use crate::identity::ComputeId;
use crate::metric::Metric;
use crate::model::Tolerance;

/// Whether one number is further apart on two engines than that; none where they are one, or nothing is known of such
/// numbers.
pub(super) fn beyond(first: &StoredNumber, second: &StoredNumber, engines: &[ComputeId; 2]) -> Option<bool> {
    if engines[0] == engines[1] {
        return None;
    }
    let coarser = engines.iter().find(|of| of.dtype != "f32").unwrap_or(&engines[0]);
    let Tolerance { perplexity, answers, .. } = Tolerance::of(&coarser.dtype);
    if let Some((one, two)) = first.right.as_ref().zip(second.right.as_ref()) {
        let documents = one.chars().filter(|c| *c != ',').count();
        let unlike = one.chars().zip(two.chars()).filter(|(a, b)| a != b).count();
        return (one.len() == two.len()).then_some(unlike as f64 > answers * documents as f64);
    }
    Metric::find(&first.record.metric).ok().filter(Metric::is_of_texts)?;
    let (one, two) = (first.record.value?, second.record.value?);
    let apart = (two - one).abs();
    // What is no number is like nothing.
    Some(apart.is_nan() || apart > perplexity * one.abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::CPU;
    use crate::results::record::{Condition, Record};

    fn number(metric: &str, value: f64, right: Option<&str>) -> StoredNumber {
        let condition = Condition {
            backbone: "llama".into(),
            layers: 16,
            depth: 0,
            criterion: "dense".into(),
            recovery: "none".into(),
            finetuned: false,
            calibration: String::new(),
        };
        let record = Record { condition, metric: metric.into(), value: Some(value), error: None };
        let (cell, column) = ("c".to_owned(), metric.to_owned());
        StoredNumber { record, cell, column, failure: None, right: right.map(str::to_owned), losses: None }
    }

    #[test]
    fn half_precision_may_be_further_apart_and_one_engine_is_not_compared() {
        let cpu = ComputeId::from(CPU);
        let other = |dtype: &str| ComputeId { name: "candle".into(), dtype: dtype.into(), device: "cuda".into() };
        let ppl = |value| number("ppl_c4", value, None);
        for (dtype, value, expected) in [
            ("f32", 10.009, false),
            ("f32", 10.02, true),
            ("bf16", 10.04, false),
            ("bf16", 10.06, true),
            ("f16", f64::NAN, true),
        ] {
            let found = beyond(&ppl(10.0), &ppl(value), &[cpu.clone(), other(dtype)]);
            assert_eq!(found, Some(expected), "{dtype} {value}");
        }
        let answers = |wrong: usize| number("rte", 0.0, Some(&("0".repeat(wrong) + &"1".repeat(100 - wrong))));
        let ours = |dtype: &str, wrong| beyond(&answers(0), &answers(wrong), &[cpu.clone(), other(dtype)]);
        assert_eq!([ours("bf16", 2), ours("bf16", 3)], [Some(false), Some(true)]);
        assert_eq!([ours("f32", 0), ours("f32", 1)], [Some(false), Some(true)]);
        assert_eq!(beyond(&ppl(10.0), &ppl(20.0), &[cpu.clone(), cpu.clone()]), None);
        assert_eq!(
            beyond(&number("boundary_mae", 1.0, None), &number("boundary_mae", 2.0, None), &[cpu, other("f16")]),
            None
        );
    }
}
