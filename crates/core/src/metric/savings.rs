//! Savings of a variant in parameters, KV cache and operations relative to the dense model. They are computed from the
//! program, so they have no error and do not depend on the machine.

use crate::model::{Config, Load, Program, Trie};

/// Length in tokens of the prompt for which operations are counted.
const PROMPT_TOKENS: usize = 512;

/// Fractions of the dense model's parameters, KV cache and operations that a variant saves. A fraction is at most 1,
/// and negative if the operators add more than the removed layers save.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Savings {
    pub parameters: f64,
    pub kv_cache: f64,
    /// Fraction of the operations in a pass over 512 tokens, according to the cost model.
    pub operations: f64,
}

impl Savings {
    /// Computes the savings of a deployed program relative to the dense model.
    pub fn new(program: &Program, config: &Config) -> Self {
        let dense = Program::dense(config.layers);
        Self {
            parameters: saved_fraction(config.parameters(program) as f64, config.parameters(&dense) as f64),
            kv_cache: saved_fraction(config.cache_bytes(program) as f64, config.cache_bytes(&dense) as f64),
            operations: saved_fraction(count_operations(program, config), count_operations(&dense, config)),
        }
    }
}

fn saved_fraction(variant: f64, dense: f64) -> f64 {
    1.0 - variant / dense
}

fn count_operations(program: &Program, config: &Config) -> f64 {
    Trie::new(std::slice::from_ref(program)).flops(config, &Load::windows(PROMPT_TOKENS, PROMPT_TOKENS)).separate
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;
    use crate::model::{Cut, Operator, Sublayer};

    /// The sizes are computed by hand for two layers of 8 channels with one head, 16 hidden units and 10 tokens: 80
    /// parameters in the embedding, 88 in the head with its norm, 264 in an attention and 392 in an MLP with their
    /// norms.
    #[test]
    fn savings_are_fractions_of_the_dense_model() {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16, "head_dim": 8,
            "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 10,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
        });
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(config.to_string().as_bytes()).unwrap();
        let config = Config::read_file(file.path()).unwrap();
        let total = 1480.0;
        let attention = Program::without(2, &Cut::sublayers([(1, Sublayer::Attention)]));
        let map = Operator::dense(8, vec![0.0; 64]).unwrap();
        let repaired = Program::pruned(2, &[1], |_| Some(map.clone()));
        for (program, parameters, kv_cache) in [
            (Program::dense(2), 0.0, 0.0),
            (attention, 264.0 / total, 0.5),
            (Program::pruned(2, &[1], |_| None), 656.0 / total, 0.5),
            (repaired, 592.0 / total, 0.5),
        ] {
            let savings = Savings::new(&program, &config);
            assert!((savings.parameters - parameters).abs() < 1e-12, "{savings:?}, expected {parameters}");
            assert_eq!(savings.kv_cache, kv_cache);
            assert_eq!(savings.operations > 0.0, kv_cache > 0.0);
        }
    }
}
