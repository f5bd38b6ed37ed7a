//! Cost model: floating-point operations of programs, and memory requirements of backbones.

use ghostlab_kernels::linalg::panels::TASK_ROWS;

use super::batch::is_narrower;
use super::config::Config;
use super::experts::Experts;
use super::products::Products;
use super::program::{Program, Step};
use super::sublayer::Sublayer;
use super::tensors::{layer_parts, sublayer_of};
use super::trie::{Cost, Trie};
use super::weight_cache::NamedPart;

/// Size of the input that a step processes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    pub tokens: usize,
    /// Number of tokens whose logits the head computes.
    pub scored: usize,
    /// Mean segment length in tokens.
    pub length: usize,
}

impl Load {
    /// Returns the load for scoring `tokens` tokens in windows of `length` tokens.
    pub fn windows(tokens: usize, length: usize) -> Self {
        Self { tokens, scored: tokens, length }
    }
}

impl Trie {
    /// Returns the number of multiplications and additions that the programs need for the given load, with and without
    /// sharing of common steps.
    pub fn flops(&self, config: &Config, load: &Load) -> Cost {
        let narrow =
            Load { tokens: if is_narrower(load.scored, load.tokens) { load.scored } else { load.tokens }, ..*load };
        self.cost(|step, scored_only| config.flops(step, if scored_only { &narrow } else { load }))
    }
}

impl Config {
    /// Returns the number of multiplications and additions that a step needs for the given load.
    fn flops(&self, step: &Step, load: &Load) -> f64 {
        let Load { tokens, scored, length } = *load;
        let c = self.hidden as f64;
        let t = tokens as f64;
        let q = (self.heads * self.head_dim) as f64;
        let kv = (self.kv_heads * self.head_dim) as f64;
        let weights = match step.sublayer() {
            // Counts the projections, the products of queries and keys, and the products of scores and values.
            Some((Sublayer::Attention, layer)) => {
                2.0 * t * (c * (2.0 * q + 2.0 * kv) + 2.0 * self.mean_attended(layer, length) * q)
            }
            // Each token is multiplied only with the experts to which it is routed.
            Some((Sublayer::Mlp, layer)) => 2.0 * t * self.mlp_weight_count(layer, |experts| experts.used) as f64,
            None if *step == Step::Head => 2.0 * scored as f64 * c * self.vocab as f64,
            None => 0.0,
        };
        weights + step.operator().map_or(0.0, |operator| operator.flops(tokens))
    }

    /// Returns the mean number of tokens to which a query attends. Without a window, this is half the segment length.
    fn mean_attended(&self, layer: usize, length: usize) -> f64 {
        let length = length as f64;
        let window = self.windows.get(layer).copied().flatten().map_or(length, |width| (width as f64).min(length));
        if length > 0.0 { window - window * window / (2.0 * length) } else { 0.0 }
    }

    /// Returns the number of weights in a layer's MLP, including the router. `count_experts` selects whether all or
    /// only the active experts count.
    fn mlp_weight_count(&self, layer: usize, count_experts: fn(Experts) -> usize) -> usize {
        let c = self.hidden;
        match self.experts.filter(|_| self.sparse.get(layer) == Some(&true)) {
            Some(layer_experts) => layer_experts.count * c + count_experts(layer_experts) * 3 * c * layer_experts.width,
            None => 3 * c * self.intermediate,
        }
    }

    /// Returns the number of parameters in a program, including norms and biases. Tied embeddings count once.
    pub fn parameters(&self, program: &Program) -> u64 {
        program.0.iter().map(|step| self.step_parameters(step) as u64).sum()
    }

    fn step_parameters(&self, step: &Step) -> usize {
        let table = self.vocab * self.hidden;
        match step {
            Step::Embed => table,
            Step::Head => self.hidden + if self.tied_embeddings { 0 } else { table },
            Step::Apply(operator) => operator.parameter_count(),
            // An operator on a branch is folded into the weights and adds no parameters.
            Step::Sublayer(..) | Step::Edited(..) | Step::Merged(..) => {
                step.sublayer().map_or(0, |(sublayer, layer)| self.sublayer_parameters(sublayer, layer))
            }
        }
    }

    /// Returns the number of parameters in a sublayer, including its norms and biases.
    fn sublayer_parameters(&self, sublayer: Sublayer, layer: usize) -> usize {
        let parts =
            layer_parts(self, layer).into_iter().filter(|(part, _)| sublayer_of(self.architecture, part) == sublayer);
        parts.map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    fn attention_weight_count(&self) -> usize {
        let q = self.heads * self.head_dim;
        let kv = self.kv_heads * self.head_dim;
        self.hidden * (2 * q + 2 * kv)
    }

    /// Returns how many bytes of f32 KV cache a program needs per token.
    pub fn cache_bytes(&self, program: &Program) -> u64 {
        self.layer_cache_bytes() * program.0.iter().filter(|step| step.is_attention()).count() as u64
    }

    /// Returns the size of the KV cache in bytes for `prompt` shared tokens and `new` tokens per program. Programs
    /// share the prompt's keys and values in common steps.
    pub fn prompt_cache_bytes(&self, trie: &Trie, prompt: usize, new: usize) -> u64 {
        let Cost { shared, separate } = trie.cost(|step, _| f64::from(u8::from(step.is_attention())));
        self.layer_cache_bytes() * (shared as u64 * prompt as u64 + separate as u64 * new as u64)
    }

    fn layer_cache_bytes(&self) -> u64 {
        8 * (self.kv_heads * self.head_dim) as u64
    }

    /// Returns the number of weights in a layer, without norms and biases.
    pub(super) fn layer_weight_count(&self, layer: usize) -> u64 {
        let sizes = [
            (Sublayer::Attention, self.attention_weight_count()),
            (Sublayer::Mlp, self.mlp_weight_count(layer, |experts| experts.count)),
        ];
        let retained = sizes.into_iter().filter(|&(sublayer, _)| !self.dropped.contains(layer, sublayer));
        retained.map(|(_, count)| count as u64).sum()
    }

    /// Returns how many bytes the weights occupy in the CPU engine. A tied output projection has a separate copy in
    /// another layout.
    pub fn weight_bytes(&self, products: Products) -> u64 {
        let layers: u64 = (0..self.layers).map(|layer| self.layer_weight_count(layer)).sum();
        products.bytes() * layers + self.head_bytes(Products::F32) + self.head_bytes(products)
    }

    /// Returns the size of the largest layer in bytes, without norms and biases.
    pub fn layer_bytes(&self, products: Products) -> u64 {
        products.bytes() * (0..self.layers).map(|layer| self.layer_weight_count(layer)).max().unwrap_or(0)
    }

    /// Returns the size of a part in bytes. Parts are loaded on demand: layers without their experts, single experts
    /// and the head.
    pub(super) fn part_bytes(&self, products: Products, part: usize) -> u64 {
        let expert = self.experts.map_or(0, |experts_of_layer| 3 * self.hidden * experts_of_layer.width) as u64;
        match self.part(part) {
            NamedPart::Layer(layer) if self.sparse[layer] => {
                let experts = self.experts.map_or(0, |experts_of_layer| experts_of_layer.count) as u64;
                products.bytes() * (self.layer_weight_count(layer) - experts * expert)
            }
            NamedPart::Layer(layer) => products.bytes() * self.layer_weight_count(layer),
            NamedPart::Expert(layer, _) if self.sparse[layer] => products.bytes() * expert,
            NamedPart::Expert(..) => 0,
            NamedPart::Head => self.head_bytes(products),
        }
    }

    /// Returns the size of the largest part in bytes.
    pub(super) fn largest_part_bytes(&self, products: Products) -> u64 {
        (0..=self.head_part()).map(|part| self.part_bytes(products, part)).max().unwrap_or(0)
    }

    /// Returns the size of the output projection in bytes. For [`Products::F32`], this is also the size of the f32
    /// embedding.
    pub fn head_bytes(&self, products: Products) -> u64 {
        products.bytes() * (self.vocab * self.hidden) as u64
    }

    /// Splits a memory budget into bytes for weights and bytes for residual streams. Streams get 0 bytes unless weights
    /// are loaded on demand.
    pub(super) fn split_budget(&self, products: Products, budget: u64) -> (u64, u64) {
        let streams = if self.weight_bytes(products) <= budget { 0 } else { budget / 8 };
        (budget - streams, streams)
    }

    /// Returns the size in bytes of the weights that a program needs, including its f32 operators. Each parameter of a
    /// layer or the head takes `layer_parameter_bytes` bytes, and each parameter of the embedding takes
    /// `embedding_parameter_bytes` bytes. If `one_table` is set, tied embeddings count once.
    pub(super) fn needed_bytes(
        &self,
        program: &Program,
        layer_parameter_bytes: u64,
        embedding_parameter_bytes: u64,
        one_table: bool,
    ) -> u64 {
        let embedding = if one_table && self.tied_embeddings { 0 } else { embedding_parameter_bytes };
        program.0.iter().map(|step| self.step_bytes(step, layer_parameter_bytes, embedding)).sum()
    }

    fn step_bytes(&self, step: &Step, layer_parameter_bytes: u64, embedding_parameter_bytes: u64) -> u64 {
        let table = self.vocab * self.hidden;
        let (count, parameter_bytes) = match (step, step.sublayer()) {
            (Step::Embed, _) => (table, embedding_parameter_bytes),
            (Step::Head, _) => (table, layer_parameter_bytes),
            (_, Some((Sublayer::Attention, _))) => (self.attention_weight_count(), layer_parameter_bytes),
            (_, Some((Sublayer::Mlp, layer))) => {
                (self.mlp_weight_count(layer, |experts| experts.count), layer_parameter_bytes)
            }
            (_, None) => (0, 0),
        };
        let operator_parameters = step.operator().map_or(0, |operator| operator.parameter_count());
        parameter_bytes * count as u64 + (size_of::<f32>() * operator_parameters) as u64
    }

    /// Estimates the memory in bytes for training an operator on sequences of `length` tokens. The estimate includes a
    /// quarter of the layers, the output projection, the operator matrix with its gradient and optimizer moments, and
    /// the logits with their computation graph.
    pub fn training_bytes(&self, length: usize) -> u64 {
        let weights = self.layers.div_ceil(4) as u64 * self.layer_bytes(Products::F32) + self.head_bytes(Products::F32);
        weights + 16 * (self.hidden * self.hidden) as u64 + 16 * (length * self.vocab) as u64
    }

    /// Estimates the memory in bytes for a batch of `tokens` tokens with `streams` residual streams. The estimate
    /// includes attention and the intermediates of one task per thread. Tasks with twice as many rows compute their gates
    /// in pieces, and need about as much.
    pub fn batch_bytes(&self, tokens: usize, streams: usize) -> u64 {
        let attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim;
        let width = self.intermediate.max(self.experts.map_or(0, |experts| experts.width));
        let blocks = rayon::current_num_threads() * tokens.min(TASK_ROWS) * (2 * width + 2 * self.hidden);
        (4 * (tokens * (self.hidden * (2 + streams) + attention) + blocks)) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;

    fn config(value: &serde_json::Value) -> Config {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(value.to_string().as_bytes()).unwrap();
        Config::read_file(file.path()).unwrap()
    }

    /// Expected values are computed by hand for the dimensions of Mixtral-8x7B: 46.7 billion weights, of which 12.9
    /// billion are active per token (the model card says 47 and 13).
    #[test]
    fn memory_counts_all_experts_but_flops_only_active_ones() {
        let mixtral = config(&json!({
            "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "head_dim": 128,
            "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 32000,
        }));
        let weights = mixtral.weight_bytes(Products::F32) / 4;
        assert_eq!(weights, 46_702_526_464, "without norms");
        let load = Load { tokens: 1, scored: 1, length: 1 };
        let [attention, mlp, head] =
            [Step::Sublayer(Sublayer::Attention, 0), Step::Sublayer(Sublayer::Mlp, 0), Step::Head]
                .map(|step| mixtral.flops(&step, &load) / 2.0);
        let work = 32.0 * (attention + mlp) + head;
        // The estimate includes the products of queries and keys, and excludes the embedding, which is a lookup.
        assert!((work - 12_748e6).abs() < 20e6, "{work}");
        // Experts are loaded on demand one by one, not all eight experts of a layer together.
        assert_eq!(mixtral.largest_part_bytes(Products::F32), 4 * 3 * 4096 * 14336);
        assert_eq!(mixtral.part_bytes(Products::Bf16, 1), 2 * 3 * 4096 * 14336);
    }

    #[test]
    fn kv_cache_size_counts_the_shared_prompt_once() {
        let config = config(&json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 100,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
        }));
        let programs = [Program::dense(4), Program::pruned(4, &[2], |_| None)];
        // The programs share the 2 layers before the cut. After it, the dense program has 2 layers and the pruned one
        // has 1. The prompt therefore runs 5 layers. Each new token runs 4 layers in the dense program and 3 in the
        // pruned one.
        let layer = 8 * 2 * 16;
        let trie = Trie::new(&programs);
        assert_eq!(config.prompt_cache_bytes(&trie, 10, 3), layer * (10 * 5 + 3 * 7));
        let one = Trie::new(&programs[..1]);
        assert_eq!(config.prompt_cache_bytes(&one, 1, 0), config.cache_bytes(&programs[0]));
        assert_eq!(config.prompt_cache_bytes(&Trie::new(&[]), 10, 3), 0);
    }

    /// Uses a Qwen3-MoE config with some dense layers, so that layers differ in size.
    #[test]
    fn layers_of_different_sizes_are_counted_individually() {
        let mixed = config(&json!({
            "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 100, "num_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "decoder_sparse_step": 2,
        }));
        let attention = 64 * (2 * 64 + 2 * 32);
        let dense = 3 * 64 * 96;
        let sparse = 6 * (64 + 3 * 64 * 32);
        assert_eq!(mixed.weight_bytes(Products::F32), 4 * (4 * attention + 2 * dense + 2 * sparse + 2 * 6400));
        let parts: u64 = (0..mixed.head_part()).map(|part| mixed.part_bytes(Products::F32, part)).sum();
        assert_eq!(parts, 4 * (4 * attention + 2 * dense + 2 * sparse));
        assert_eq!(mixed.layer_bytes(Products::F32), 4 * (attention + sparse));
    }
}
