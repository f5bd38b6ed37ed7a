//! What the sentences say of time and memory: tables 5, A8 and A9.

use super::super::claim::ClaimAxis::{Backbone, Depth};
use super::super::claim::{Claim, Needed};
use super::super::outcome::Check;
use super::super::setting::ClaimSetting;
use super::words::{DIAG, GHOSTED, NONE, ROTATE, any};
use crate::metric;

const PREFILL: &str = metric::PREFILL.id;
const MEMORY: &str = metric::MEMORY.id;

/// Differences of so many deviations are noise.
const DEVIATIONS: f64 = 3.0;

/// The tables of the sweep: the smaller cut and the larger one.
#[derive(Clone, Copy)]
enum Sweep {
    A8,
    A9,
}

impl Sweep {
    const fn table(self) -> &'static [&'static str] {
        match self {
            Sweep::A8 => &["tableA8"],
            Sweep::A9 => &["tableA9"],
        }
    }

    const fn within_noise(self) -> &'static str {
        match self {
            Sweep::A8 => {
                "the first half, at the smaller cut: the means are apart by at most three deviations, the root of the sum of \
                 both squared"
            }
            Sweep::A9 => {
                "the first half, at the larger cut: the means are apart by at most three deviations, the root of the sum of \
                 both squared"
            }
        }
    }

    const fn speedup_stays(self) -> &'static str {
        match self {
            Sweep::A8 => {
                "the second half, at the smaller cut: faster than the dense backbone, by nine tenths or more of what the bare \
                 cut saves"
            }
            Sweep::A9 => {
                "the second half, at the larger cut: faster than the dense backbone, by nine tenths or more of what the bare \
                 cut saves"
            }
        }
    }

    const fn one_product(self) -> &'static str {
        match self {
            Sweep::A8 => {
                "at the smaller cut: the overhead over the bare cut is less than the time of one removed layer"
            }
            Sweep::A9 => "at the larger cut: the overhead over the bare cut is less than the time of one removed layer",
        }
    }
}

pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "table5-identical-cost",
        artifacts: &["table5"],
        says: "LinearPatch and Ghosted Layers incur identical cost as a single C × C operation.",
        place: "Section 6",
        reading: Some("identical: the same memory as printed, latencies within one in a hundred, up or down"),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: |of| {
            let same = |other| {
                let apart = (of.value(PREFILL, GHOSTED) - of.value(PREFILL, other)).abs();
                let memory = of.value(MEMORY, GHOSTED).equal(of.value(MEMORY, other));
                apart.at_most(0.01 * of.value(PREFILL, other)).and(memory)
            };
            Check::all([DIAG, ROTATE].map(same))
        },
    },
    Claim {
        id: "table5-half-a-millisecond",
        artifacts: &["table5"],
        says: "At n = 7, Ghosted Layers (291.9 ms) and LinearPatch (Rotate) (291.7 ms) are indistinguishable within \
               measurement noise, and they remain within 0.5 ms of each other at n = 11.",
        place: "Appendix G",
        reading: Some("within 0.5 ms of each other at every depth, whichever is faster"),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: |of| (of.value(PREFILL, GHOSTED) - of.value(PREFILL, ROTATE)).abs().at_most(0.5),
    },
    matches("tableA8-matches-linearpatch", Sweep::A8),
    keeps_speedup("tableA8-speedup", Sweep::A8),
    one_product("tableA8-overhead", Sweep::A8),
    matches("tableA9-matches-linearpatch", Sweep::A9),
    keeps_speedup("tableA9-speedup", Sweep::A9),
    one_product("tableA9-overhead", Sweep::A9),
];

const SWEEP: &str = "Across both pruning ratios and all evaluated configurations, the latency of Ghosted Layers matches \
                     LinearPatch to within measurement noise and preserves the speedup gained from layer removal regardless \
                     of sequence length or batch size.";

/// Of one of the tables; reading and check are the caller's.
const fn swept(id: &'static str, of: Sweep, reading: &'static str, check: fn(&ClaimSetting<'_>) -> Check) -> Claim {
    Claim {
        id,
        artifacts: of.table(),
        says: SWEEP,
        place: "Appendix G",
        reading: Some(reading),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check,
    }
}

const fn matches(id: &'static str, of: Sweep) -> Claim {
    swept(id, of, of.within_noise(), matches_linearpatch)
}

const fn keeps_speedup(id: &'static str, of: Sweep) -> Claim {
    swept(id, of, of.speedup_stays(), speedup_stays)
}

const fn one_product(id: &'static str, of: Sweep) -> Claim {
    let says = "both reduce to a single C × C matrix multiplication at the boundary.";
    Claim { says, ..swept(id, of, of.one_product(), overhead_is_small) }
}

fn matches_linearpatch(of: &ClaimSetting<'_>) -> Check {
    let at = |prompt: &String| {
        let near = |other| {
            let apart = (of.value(prompt, GHOSTED) - of.value(prompt, other)).abs();
            apart.at_most(DEVIATIONS * of.noise(prompt, GHOSTED, other))
        };
        Check::all([DIAG, ROTATE].map(near))
    };
    Check::all(of.prompts(PREFILL, &[GHOSTED, DIAG, ROTATE]).iter().map(at))
}

fn speedup_stays(of: &ClaimSetting<'_>) -> Check {
    let at = |prompt: &String| {
        let saved = |recovery| of.of_dense(prompt) - of.value(prompt, recovery);
        saved(GHOSTED).above(0.0).and(saved(GHOSTED).at_least(0.9 * saved(NONE)))
    };
    Check::all(of.prompts(PREFILL, &[GHOSTED, NONE]).iter().map(at))
}

fn overhead_is_small(of: &ClaimSetting<'_>) -> Check {
    let at = |prompt: &String| {
        let one_layer = (1.0 / of.depth()) * (of.of_dense(prompt) - of.value(prompt, NONE));
        (of.value(prompt, GHOSTED) - of.value(prompt, NONE)).below(one_layer)
    };
    Check::all(of.prompts(PREFILL, &[GHOSTED, NONE]).iter().map(at))
}
