//! Timing results of one variant.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

use super::decode::DecodeResult;
use super::round_times::RoundTimes;

/// Times and memory of a variant for one prompt. Derefs to its prefill times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyResult {
    #[serde(flatten)]
    pub prefill: RoundTimes,
    /// Number of complete sessions measured. The times come from the last one.
    #[serde(default = "default_sessions", skip_serializing_if = "is_one")]
    pub sessions: usize,
    /// Size in bytes of the weights that the variant needs, including its operator.
    pub weight_bytes: u64,
    /// Peak size of intermediates in bytes. `None` if they are not in host memory or were not measured.
    pub intermediate_bytes: Option<u64>,
    /// Size in bytes of the dense backbone's weights and intermediates.
    pub dense_bytes: Option<u64>,
    /// Decoding times after the prompt, if requested and supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<DecodeResult>,
}

/// Returns the default for results that do not record the number of sessions.
fn default_sessions() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(sessions: &usize) -> bool {
    *sessions == 1
}

impl Deref for LatencyResult {
    type Target = RoundTimes;

    fn deref(&self) -> &RoundTimes {
        &self.prefill
    }
}

impl LatencyResult {
    /// Sets the times of the dense backbone, and chooses the counted rounds of prefill and decoding. If the variant is
    /// unstable in the rounds shared by all variants, its most stable rounds are counted instead.
    pub fn set_dense(&mut self, dense: Option<&Self>) {
        self.prefill.set_dense(dense.map(|dense| &dense.prefill));
        self.dense_bytes = dense.and_then(Self::bytes);
        if let Some(decode) = &mut self.decode {
            decode.rounds.set_dense(dense.and_then(|dense| dense.decode.as_ref()).map(|decode| &decode.rounds));
        }
    }

    /// Returns whether the prefill or decoding time is unstable, so that it must not be recorded.
    pub fn is_unstable(&self) -> bool {
        let decoded = self.decode.as_ref().and_then(|decode| decode.spread());
        [self.spread(), decoded].into_iter().flatten().any(|spread| spread.is_noise())
    }

    /// Returns the peak memory in bytes: weights and intermediates.
    pub fn bytes(&self) -> Option<u64> {
        Some(self.weight_bytes + self.intermediate_bytes?)
    }

    /// Returns the peak memory as a percentage of the dense backbone's.
    pub fn memory_percent(&self) -> Option<f64> {
        Some(100.0 * self.bytes()? as f64 / self.dense_bytes? as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_times() -> RoundTimes {
        RoundTimes { times: Some(vec![1.5, 2.25]), by_channel: None, dense: Some(vec![3.5, 4.0]), first: 1 }
    }

    fn sample_result() -> LatencyResult {
        let decode = DecodeResult { tokens: 64, rounds: sample_times(), work: 2.5, dense_work: 5.0 };
        LatencyResult {
            prefill: sample_times(),
            sessions: 3,
            weight_bytes: 1000,
            intermediate_bytes: Some(200),
            dense_bytes: None,
            decode: Some(decode),
        }
    }

    /// Stored results contain the fields of [`RoundTimes`] without nesting.
    #[test]
    fn latency_result_serializes_to_flat_json() {
        let times = r#""times":[1.5,2.25],"by_channel":null,"dense":[3.5,4.0],"first":1"#;
        let memory = r#""weight_bytes":1000,"intermediate_bytes":200,"dense_bytes":null"#;
        let decode = format!(r#"{{"tokens":64,{times},"work":2.5,"dense_work":5.0}}"#);
        let full = format!(r#"{{{times},"sessions":3,{memory},"decode":{decode}}}"#);
        let result = sample_result();
        assert_eq!(serde_json::to_string(&result).unwrap(), full);
        assert_eq!(serde_json::from_str::<LatencyResult>(&full).unwrap(), result);
        let short = LatencyResult { sessions: 1, decode: None, ..result };
        assert_eq!(serde_json::to_string(&short).unwrap(), format!("{{{times},{memory}}}"));
    }

    #[test]
    fn latency_result_is_read_without_optional_fields() {
        let times = RoundTimes { times: None, by_channel: None, dense: None, first: 0 };
        let decode = DecodeResult { tokens: 8, rounds: times.clone(), work: 1.0, dense_work: 2.0 };
        let mut expected = LatencyResult {
            prefill: times,
            sessions: 1,
            weight_bytes: 5,
            intermediate_bytes: None,
            dense_bytes: None,
            decode: None,
        };
        let read = |json: &str| serde_json::from_str::<LatencyResult>(json).unwrap();
        assert_eq!(read(r#"{"first": 0, "weight_bytes": 5}"#), expected);
        expected.decode = Some(decode);
        let json = r#"{"first":0,"weight_bytes":5,"decode":{"tokens":8,"first":0,"work":1,"dense_work":2}}"#;
        assert_eq!(read(json), expected);
        assert!(serde_json::from_str::<LatencyResult>(r#"{"weight_bytes": 5}"#).is_err());
    }
}
