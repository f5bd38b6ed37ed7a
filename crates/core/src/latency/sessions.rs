//! Repetition of timing sessions while their times are unstable.

use super::result::LatencyResult;
use crate::error::Result;

/// Maximum number of sessions per prompt for a recorded result.
pub const MAX_SESSIONS: usize = 8;

/// Measures a session of all variants and repeats it while a variant is unstable, up to `max_sessions` sessions in
/// total.
///
/// All variants use the last session even if it is unstable, because speedups compare times from the same session.
/// Earlier sessions are never used, so that no time is the best of several attempts. `before_repeat` is called with the
/// number of unstable variants and the number of sessions so far.
///
/// # Errors
/// Propagates errors from `measure_session` and `before_repeat`.
pub fn measure_until_stable(
    max_sessions: usize,
    measure_session: &mut dyn FnMut() -> Result<Vec<LatencyResult>>,
    before_repeat: &mut dyn FnMut(usize, usize) -> Result<()>,
) -> Result<Vec<LatencyResult>> {
    let mut sessions = 1;
    loop {
        let mut results = measure_session()?;
        let unstable = results.iter().filter(|result| result.is_unstable()).count();
        if unstable == 0 || sessions >= max_sessions {
            results.iter_mut().for_each(|result| result.sessions = sessions);
            return Ok(results);
        }
        before_repeat(unstable, sessions)?;
        sessions += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::RoundTimes;

    fn result_with_times(times: [f64; 2]) -> LatencyResult {
        LatencyResult {
            prefill: RoundTimes { times: Some(times.to_vec()), by_channel: None, dense: None, first: 0 },
            sessions: 1,
            weight_bytes: 0,
            intermediate_bytes: None,
            dense_bytes: None,
            decode: None,
        }
    }

    /// Runs sessions of two variants, each given by its times. Unequal times are unstable.
    fn run_sessions(max_sessions: usize, sessions: &[[[f64; 2]; 2]]) -> (Vec<LatencyResult>, Vec<(usize, usize)>) {
        let mut left = sessions.iter();
        let mut repeated = Vec::new();
        let results = measure_until_stable(
            max_sessions,
            &mut || Ok(left.next().unwrap().iter().copied().map(result_with_times).collect()),
            &mut |unstable, sessions| {
                repeated.push((unstable, sessions));
                Ok(())
            },
        );
        (results.unwrap(), repeated)
    }

    #[test]
    fn last_session_is_used_for_all_variants() {
        // In the first session, the second variant is faster and stable, but the first variant is not. The session must
        // not be used.
        let sessions = [[[10.0, 20.0], [5.0, 5.0]], [[11.0, 22.0], [6.0, 9.0]], [[12.0, 12.0], [7.0, 7.0]]];
        let (results, repeated) = run_sessions(8, &sessions);
        assert_eq!(results.iter().map(|result| result.times.clone().unwrap()[0]).collect::<Vec<_>>(), [12.0, 7.0]);
        assert_eq!(repeated, [(1, 1), (2, 2)]);
        assert!(results.iter().all(|result| result.sessions == 3));
        assert_eq!(run_sessions(8, &sessions[2..]).1, []);
    }

    #[test]
    fn unstable_sessions_end_at_their_limit() {
        let sessions = [[[10.0, 11.0], [5.0, 5.0]], [[10.0, 90.0], [5.0, 9.0]], [[1.0, 1.0]; 2]];
        let (results, repeated) = run_sessions(2, &sessions);
        // The last session is used although it is less stable than the first.
        assert_eq!(results[1].times, Some(vec![5.0, 9.0]));
        assert!(results.iter().all(|result| result.is_unstable() && result.sessions == 2));
        assert_eq!(repeated, [(1, 1)]);
        assert_eq!(run_sessions(1, &sessions).1, []);
    }
}
