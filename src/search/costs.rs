//! What a variant costs by the cost model, and what of a budget that misses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::grid::{Budget, Latency};
use crate::latency::{Prompt, decode_work};
use crate::model::{Config, EngineChoice, Load, Program, Trie};

/// What a variant costs by the cost model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Costs {
    /// Operations of the dense backbone over the prompt, and for what is decoded behind it, divided by the variant's.
    pub speedup: f64,
    /// Bytes of the weights that it needs, its operators among them.
    pub bytes: u64,
}

impl Costs {
    /// Of a program as it is deployed.
    pub fn of(program: &Program, config: &Config, engine: EngineChoice, prompt: Latency) -> Self {
        let load = Load::windows(prompt.length * prompt.batch, prompt.length);
        let (new, read) = (prompt.decode, Prompt { length: prompt.length, batch: prompt.batch });
        let flops = |program: &Program| {
            let own = Trie::new(std::slice::from_ref(program)).flops(config, &load).separate;
            own + new.map_or(0.0, |new| decode_work(config, program, read, new))
        };
        let dense = Program::dense(config.layers);
        Self { speedup: flops(&dense) / flops(program), bytes: engine.needed_bytes(config, program) }
    }

    /// Of a cut of so many layers without operators, wherever it lies.
    pub fn of_cut(depth: usize, config: &Config, engine: EngineChoice, prompt: Latency) -> Self {
        let start = config.layers.saturating_sub(depth) / 2;
        let removed: Vec<usize> = (start..(start + depth).min(config.layers)).collect();
        Self::of(&Program::pruned(config.layers, &removed, |_| None), config, engine, prompt)
    }

    /// What of a budget is not met, in words; `dense` are the milliseconds of the dense backbone, where they are known.
    pub fn misses(&self, budget: &Budget, dense: Option<f64>) -> Option<String> {
        let slow = budget.speedup.filter(|wanted| self.speedup < *wanted);
        let slow = slow.map(|wanted| format!("{:.3} times as fast by the cost model, not {wanted}", self.speedup));
        let late = budget.latency.zip(dense).map(|(most, dense)| (most, dense / self.speedup));
        let late = late.filter(|(most, time)| time > most);
        let late = late.map(|(most, time)| format!("{time:.2} ms by the cost model, not {most}"));
        let large = budget.memory.filter(|most| self.bytes > *most);
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let large = large.map(|most| format!("{:.2} MB of weights, not {:.2}", megabytes(self.bytes), megabytes(most)));
        slow.or(late).or(large)
    }
}

pub(super) fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
