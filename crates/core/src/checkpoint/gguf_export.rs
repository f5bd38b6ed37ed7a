//! Export of a variant as a single GGUF file for llama.cpp, using the tensor names, metadata keys and row order of
//! llama.cpp's converter.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor as Array};

use super::deci_export;
use super::gguf_tensor::{
    GgufContent, GgufTensor, GgufType, LayerCounts, checkpoint_tensor, count_value, unsupported_error,
};
use super::layout::{CheckpointTensor, Layout, TensorContent};
use super::shards::{encode, for_each_block, read_merged_values};
use crate::error::{Error, Result};
use crate::files::gguf_writer::{self, GgufInfo, padding};
use crate::model::architecture::{GgufForm, GgufPlaces};
use crate::model::config::Scaling;
use crate::model::gguf_backbone::{
    ROPE_FACTORS, attention_scale_in_gguf, is_interleaved, is_offset_by_one, llama3_divisors,
};
use crate::model::{Config, FloatType};

/// Name and additional metadata entries of a GGUF file.
#[derive(Debug, Clone)]
pub struct GgufMetadata {
    /// Model name, stored as `general.name`.
    pub name: String,
    /// Metadata entries, such as those of the tokenizer.
    pub entries: Vec<(String, Value)>,
}

/// Returns the GGUF format that can represent a variant.
///
/// # Errors
/// Fails if `deci` cannot represent the operators or dropped sublayers, if llama.cpp does not support the architecture,
/// or if llama.cpp would compute something else, for example by ignoring sliding windows.
pub fn gguf_form(config: &Config, layout: &Layout) -> Result<GgufForm> {
    let needs_deci = layout.needs_modeling_file();
    let form = if needs_deci { Some(deci_export::gguf_form(config, layout)?) } else { config.architecture.gguf };
    let form =
        form.ok_or_else(|| unsupported_error("an architecture that llama.cpp supports", config.architecture.class))?;
    let context = config.max_positions.unwrap_or(usize::MAX);
    let windows = || layout.kept.iter().map(|&layer| config.windows[layer].filter(|&window| window < context));
    let mismatch = |pattern: &dyn Fn(usize) -> bool, original: &dyn Fn(usize) -> bool| {
        (0..layout.kept.len()).find(|&index| pattern(index) != original(layout.kept[index]))
    };
    if let (None, Some(window)) = (full_attention_interval(form), windows().flatten().min()) {
        let expected = format!("no sliding windows, which llama.cpp ignores in `{}`", form.name);
        return Err(unsupported_error(&expected, format!("a window of {window} tokens")));
    }
    if let (Some(every), true) = (full_attention_interval(form), windows().any(|window| window.is_some())) {
        if let Some(index) = mismatch(&|index| has_window(index, every), &|layer| config.windows[layer].is_some()) {
            let found = if has_window(index, every) { "no sliding window" } else { "a sliding window" };
            let expected =
                format!("full attention only in the last of every {every} layers, as in llama.cpp's `{}`", form.name);
            return Err(unsupported_error(&expected, format!("{found} in remaining layer {index}")));
        }
        if windows().flatten().collect::<BTreeSet<_>>().len() > 1 {
            return Err(unsupported_error("the same size for all sliding windows", "windows of several sizes"));
        }
    }
    if let GgufPlaces::Unrotated(every) = form.places
        && let Some(index) = mismatch(&|index| (index + 1) % every != 0, &|layer| config.rotated[layer])
    {
        let expected =
            format!("rotary embeddings in all but the last of every {every} layers, as in llama.cpp's `{}`", form.name);
        let found = if (index + 1) % every == 0 { "a rotary embedding" } else { "no rotary embedding" };
        return Err(unsupported_error(&expected, format!("{found} in remaining layer {index}")));
    }
    let scale = attention_scale_in_gguf(form, layout.kept.len(), config.hidden, config.heads, config.head_dim);
    if (config.scale / scale - 1.0).abs() > 1e-6 {
        return Err(unsupported_error(
            &format!("attention scores scaled by {scale}, as in llama.cpp"),
            config.scale.to_string(),
        ));
    }
    if form.name == "gemma2" {
        check_gemma2(config)?;
    }
    if config.architecture.fused && config.heads * config.head_dim != config.hidden {
        let found = format!("{} heads of {} channels", config.heads, config.head_dim);
        return Err(unsupported_error(
            &format!("heads of {} channels in total, as in llama.cpp", config.hidden),
            found,
        ));
    }
    if config.window_rope.as_ref().is_some_and(|rope| rope.scaling.is_some()) {
        return Err(unsupported_error("an unscaled rotary embedding in sliding windows", "a scaled rotary embedding"));
    }
    rope_scaling_entries(config)?;
    Ok(form)
}

/// Rejects models without the soft caps or the tied embeddings that llama.cpp assumes in `gemma2`.
fn check_gemma2(config: &Config) -> Result<()> {
    // llama.cpp applies its default soft caps if the metadata entries are missing.
    let mut capped = config.architecture.caps.iter().zip([config.score_cap, config.logit_cap]);
    if capped.any(|(key, cap)| key.is_some() && cap.is_none()) {
        return Err(unsupported_error(
            "soft caps of attention scores and logits, which llama.cpp always applies in `gemma2`",
            "none",
        ));
    }
    if !config.tied_embeddings {
        return Err(unsupported_error("tied embeddings, as in llama.cpp's `gemma2`", "an untied head"));
    }
    Ok(())
}

/// Returns whether llama.cpp uses a sliding window in layer `index`, if the last of every `every` layers has full
/// attention.
fn has_window(index: usize, every: usize) -> bool {
    index % every < every - 1
}

/// Returns `n` if llama.cpp uses full attention in every `n`th layer and sliding windows in all other layers. Returns
/// `None` if llama.cpp uses no sliding windows.
fn full_attention_interval(form: GgufForm) -> Option<usize> {
    if let GgufPlaces::Windows(every) = form.places { Some(every) } else { None }
}

/// Returns the `rope.scaling.*` metadata entries for the RoPE scaling in the config. `llama3` scaling has none, because
/// GGUF stores it as a tensor.
fn rope_scaling_entries(config: &Config) -> Result<Vec<(&'static str, Value)>> {
    match &config.rope.scaling {
        None | Some(Scaling::Llama3(_)) => Ok(Vec::new()),
        Some(Scaling::Linear { factor }) => Ok(vec![("type", string_value("linear")), ("factor", f32_value(*factor))]),
        // llama.cpp supports only the default attention factor, and always rounds the correction bounds.
        Some(Scaling::Yarn(yarn))
            if yarn.truncate && (yarn.attention - (0.1 * yarn.factor.ln() + 1.0)).abs() < 1e-6 =>
        {
            Ok(vec![
                ("type", string_value("yarn")),
                ("factor", f32_value(yarn.factor)),
                ("original_context_length", Value::U32(yarn.original_max_position_embeddings as u32)),
                ("yarn_beta_fast", f32_value(yarn.beta_fast)),
                ("yarn_beta_slow", f32_value(yarn.beta_slow)),
            ])
        }
        Some(other) => {
            let known = "the rope type `default`, `linear`, `llama3`, or `yarn` with its usual attention factor";
            Err(unsupported_error(known, format!("`{}`", other.name())))
        }
    }
}

fn f32_value(value: f64) -> Value {
    Value::F32(value as f32)
}

fn string_value(text: &str) -> Value {
    Value::String(text.to_owned())
}

impl Layout {
    /// Computes the total size in bytes of the tensors in the GGUF file.
    ///
    /// # Errors
    /// See [`gguf_form`].
    pub fn gguf_bytes(&self, config: &Config, file_type: GgufType) -> Result<u64> {
        Ok(self.plan_gguf_tensors(config, file_type)?.iter().map(|tensor| tensor.info.bytes() as u64).sum())
    }

    /// Writes the variant as a GGUF file. Calls `on_written` with the size of each written block in bytes.
    ///
    /// # Errors
    /// See [`gguf_form`] and [`Layout::write`].
    pub fn write_gguf(
        &self,
        config: &Config,
        file_type: GgufType,
        metadata: &GgufMetadata,
        path: &Path,
        out: &mut dyn Write,
        on_written: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let form = gguf_form(config, self)?;
        let tensors = self.plan_gguf_tensors(config, file_type)?;
        let mut write_bytes = |bytes: &[u8]| {
            out.write_all(bytes).map_err(|error| Error::io("write", path, &error))?;
            on_written(bytes.len() as u64)
        };
        let infos: Vec<&GgufInfo> = tensors.iter().map(|tensor| &tensor.info).collect();
        write_bytes(&gguf_writer::header(&self.build_metadata_entries(config, form, file_type, metadata)?, &infos)?)?;
        for GgufTensor { info, content } in &tensors {
            match content {
                GgufContent::Checkpoint(tensor) => {
                    self.write_checkpoint_tensor(config, form, tensor, info.dtype, &mut write_bytes)?;
                }
                GgufContent::Numbers(values) => {
                    write_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())?;
                }
                // Zeros are encoded as zero bytes in every type.
                GgufContent::Zeros => write_bytes(&vec![0; info.bytes()])?,
            }
            write_bytes(&vec![0; padding(info.bytes())])?;
        }
        Ok(())
    }

    /// Writes the data of a checkpoint tensor.
    fn write_checkpoint_tensor(
        &self,
        config: &Config,
        form: GgufForm,
        tensor: &CheckpointTensor,
        dtype: GgmlDType,
        write_bytes: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = Vec::new();
        let adds_one = is_offset_by_one(config.architecture, &tensor.name);
        let mut write = |values: &[f32]| {
            if adds_one {
                let shifted: Vec<f32> = values.iter().map(|value| value + 1.0).collect();
                encode_values(tensor, dtype, &shifted, &mut bytes)?;
            } else {
                encode_values(tensor, dtype, values, &mut bytes)?;
            }
            write_bytes(&bytes)
        };
        match &tensor.content {
            TensorContent::Stored(name) if is_interleaved(form, &tensor.name) => {
                write(&interleave_halves(&self.weights.take(name, &tensor.shape)?, tensor.shape[0], config.head_dim))
            }
            TensorContent::Merged(part, merged) if is_interleaved(form, &tensor.name) => {
                let values = read_merged_values(part, merged, &tensor.shape, &self.weights)?;
                write(&interleave_halves(&values, tensor.shape[0], config.head_dim))
            }
            _ => for_each_block(tensor, &self.weights, &mut write),
        }
    }

    /// Returns the tensors of the GGUF file in file order.
    fn plan_gguf_tensors(&self, config: &Config, file_type: GgufType) -> Result<Vec<GgufTensor<'_>>> {
        let mut tensors = if self.needs_modeling_file() {
            deci_export::plan_tensors(self, config, file_type)?
        } else {
            let named = self.tensors.iter().map(|tensor| checkpoint_tensor(config, &tensor.name, tensor, file_type));
            named.collect::<Result<Vec<_>>>()?
        };
        if let Some(Scaling::Llama3(scaling)) = &config.rope.scaling {
            let llama3 = [
                scaling.factor,
                scaling.low_freq_factor,
                scaling.high_freq_factor,
                scaling.original_max_position_embeddings,
            ];
            let factors = llama3_divisors(config.rope.theta, config.head_dim / 2, llama3);
            let factors: Vec<f32> = factors.into_iter().map(|factor| factor as f32).collect();
            let info = GgufInfo { name: ROPE_FACTORS.to_owned(), dtype: GgmlDType::F32, shape: vec![factors.len()] };
            tensors.push(GgufTensor { info, content: GgufContent::Numbers(factors) });
        }
        Ok(tensors)
    }

    fn build_metadata_entries(
        &self,
        config: &Config,
        form: GgufForm,
        file_type: GgufType,
        metadata: &GgufMetadata,
    ) -> Result<Vec<(String, Value)>> {
        let general = [
            ("architecture", Value::String(form.name.to_owned())),
            ("type", Value::String("model".to_owned())),
            ("name", Value::String(metadata.name.clone())),
            ("file_type", Value::U32(file_type.code())),
            ("quantization_version", Value::U32(2)),
            ("alignment", Value::U32(32)),
        ];
        // If the config gives no context length, use llama.cpp's default.
        let context = config.max_positions.unwrap_or(2048);
        let counts = if self.needs_modeling_file() {
            deci_export::compute_layer_counts(self, config)
        } else {
            LayerCounts {
                blocks: self.kept.len(),
                heads: count_value(config.heads),
                kv_heads: count_value(config.kv_heads),
                intermediate: count_value(config.intermediate),
            }
        };
        let pairs = [
            ("block_count", count_value(counts.blocks)),
            ("context_length", count_value(context)),
            ("embedding_length", count_value(config.hidden)),
            ("feed_forward_length", counts.intermediate),
            ("attention.head_count", counts.heads),
            ("attention.head_count_kv", counts.kv_heads),
            ("attention.key_length", count_value(config.head_dim)),
            ("attention.value_length", count_value(config.head_dim)),
            ("attention.layer_norm_rms_epsilon", Value::F32(config.norm_eps)),
            ("rope.dimension_count", count_value(config.rotary_width)),
            ("rope.freq_base", Value::F32(config.rope.theta as f32)),
            ("vocab_size", count_value(config.vocab)),
        ];
        let mut pairs = pairs.to_vec();
        if full_attention_interval(form).is_some() {
            // If no layer has a window, write the context length, because a window of that size has no effect.
            let window = self.kept.iter().find_map(|&layer| config.windows[layer]).unwrap_or(context);
            pairs.push(("attention.sliding_window", count_value(window)));
        }
        let caps = [("attn_logit_softcapping", config.score_cap), ("final_logit_softcapping", config.logit_cap)];
        pairs.extend(caps.into_iter().filter_map(|(key, cap)| Some((key, Value::F32(cap?)))));
        pairs.extend(config.window_rope.as_ref().map(|rope| ("rope.freq_base_swa", Value::F32(rope.theta as f32))));
        let general = general.map(|(key, value)| (format!("general.{key}"), value));
        let scaling = rope_scaling_entries(config)?
            .into_iter()
            .map(|(key, value)| (format!("{}.rope.scaling.{key}", form.name), value));
        let pairs = pairs.into_iter().map(|(key, value)| (format!("{}.{key}", form.name), value));
        Ok(general.into_iter().chain(pairs).chain(scaling).chain(metadata.entries.iter().cloned()).collect())
    }
}

/// Interleaves the two halves of each head: output row 2·i + j of a head is row i of half j.
fn interleave_halves(values: &[f32], rows: usize, head_dim: usize) -> Vec<f32> {
    let inner = values.len() / rows.max(1);
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(values.len());
    for row in 0..rows {
        let head = row / head_dim * head_dim;
        let channel = row % head_dim;
        let from = head + channel % 2 * half + channel / 2;
        out.extend_from_slice(&values[from * inner..(from + 1) * inner]);
    }
    out
}

/// Encodes values as `dtype`, the type of the tensor in the file.
fn encode_values(tensor: &CheckpointTensor, dtype: GgmlDType, values: &[f32], bytes: &mut Vec<u8>) -> Result<()> {
    let float = match dtype {
        GgmlDType::F32 => FloatType::F32,
        GgmlDType::BF16 => FloatType::Bf16,
        GgmlDType::F16 => FloatType::F16,
        dtype => {
            let array = Array::from_slice(values, values.len(), &Device::Cpu)?;
            let quantized = QTensor::quantize(&array, dtype)?;
            bytes.clear();
            bytes.extend_from_slice(&quantized.data()?);
            return Ok(());
        }
    };
    encode(&tensor.name, float, values, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_halves_are_interleaved_within_each_head() {
        // Two heads of four rows with one value each.
        let values = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0];
        assert_eq!(interleave_halves(&values, 8, 4), [0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0]);
    }
}
