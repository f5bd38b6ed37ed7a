//! Rotary embedding settings in a config: base, RoPE type, layers and rotated channels. The old format (`rope_scaling`)
//! and the new one (`rope_parameters`) are read as in transformers 5.

use std::ops::RangeInclusive;

use super::architecture::{Architecture, RopeEntries};
use super::config_fields::Entries;
use super::window::MAX_CONTEXT_LENGTH;
use crate::error::{Error, Result};

/// Valid range of `rope_theta`. The upper bound is far above the values of known models.
const THETA_RANGE: RangeInclusive<f64> = 1.0..=1e15;
const FACTOR_RANGE: RangeInclusive<f64> = 1e-3..=1e6;
/// Config keys that determine which layers have no rotary embedding.
const NO_ROPE_LAYERS_KEY: &str = "no_rope_layers";
const NO_ROPE_INTERVAL_KEY: &str = "no_rope_layer_interval";

/// Parameters that determine the frequencies of a rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub theta: f64,
    pub scaling: Option<Scaling>,
}

/// Frequency scaling of a RoPE type other than `default`.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// Divides all frequencies by `factor`.
    Linear {
        factor: f64,
    },
    /// Increases the base for sequences longer than `positions`.
    Dynamic {
        factor: f64,
        positions: usize,
    },
    Llama3(Llama3Scaling),
    Yarn(Yarn),
    LongRope(LongRope),
}

impl Scaling {
    /// Returns the name of the RoPE type in configs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::Dynamic { .. } => "dynamic",
            Self::Llama3(_) => "llama3",
            Self::Yarn(_) => "yarn",
            Self::LongRope(_) => "longrope",
        }
    }
}

/// The `llama3` RoPE type: stretches long wavelengths by `factor`, leaves short ones unchanged, and interpolates in
/// between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama3Scaling {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub original_max_position_embeddings: f64,
}

/// The `yarn` RoPE type (arXiv 2309.00071): stretches the wavelengths of channel pairs with fewer than `beta_slow`
/// rotations in the original context, leaves those with more than `beta_fast` unchanged, and interpolates linearly in
/// between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    pub original_max_position_embeddings: f64,
    /// Whether the bounds of the interpolation are rounded to integers.
    pub truncate: bool,
    /// Factor applied to cosines and sines.
    pub attention: f64,
}

/// The `longrope` RoPE type (arXiv 2402.13753): divides the frequency of each channel pair by a separate factor, which
/// differs between sequences shorter and longer than the original context.
#[derive(Debug, Clone, PartialEq)]
pub struct LongRope {
    pub short: Vec<f64>,
    pub long: Vec<f64>,
    pub original_max_position_embeddings: usize,
    /// Factor applied to cosines and sines at every length.
    pub attention: f64,
}

/// Rotary embeddings parsed from a config.
pub(super) struct Ropes {
    pub(super) rope: Rope,
    /// Rotary embedding of sliding-window layers, if it differs from `rope`.
    pub(super) window_rope: Option<Rope>,
    /// Number of rotated channels per head.
    pub(super) width: usize,
    /// Whether each layer has a rotary embedding.
    pub(super) rotated: Vec<bool>,
}

/// Parses the rotary embeddings in a config.
///
/// # Errors
/// Fails if the RoPE type is unknown, or an entry is missing, mistyped, out of range or unsupported.
pub(super) fn parse(
    entries: &Entries<'_>,
    architecture: &Architecture,
    layers: usize,
    head_dim: usize,
    notes: &mut Vec<String>,
) -> Result<Ropes> {
    let (rope, window_rope) = match architecture.rope {
        RopeEntries::ByWindow => parse_by_window(entries, head_dim)?,
        _ => (parse_single(entries, architecture, head_dim, notes)?, None),
    };
    let width = parse_rotary_dim(entries, architecture, head_dim)?;
    let rotated = if architecture.rope == RopeEntries::SomeLayers {
        parse_no_rope_layers(entries, layers)?
    } else {
        vec![true; layers]
    };
    Ok(Ropes { rope, window_rope, width, rotated })
}

/// Parses a single rotary embedding, following transformers' `convert_rope_params_to_dict`: a nonempty `rope_scaling`
/// replaces `rope_parameters`, and a nested `rope_theta` takes precedence over a top-level one.
fn parse_single(
    entries: &Entries<'_>,
    architecture: &Architecture,
    head_dim: usize,
    notes: &mut Vec<String>,
) -> Result<Rope> {
    let (old, new) = rope_sections(entries)?;
    if old.is_some() && new.is_some() {
        notes.push("config.json has rope_scaling and rope_parameters: using rope_scaling, as in transformers".into());
    }
    let inner = old.or(new);
    let theta_entry = inner.as_ref().map_or(Ok(None), |section| section.optional_number("rope_theta", THETA_RANGE))?;
    let theta = theta_entry.or(entries.optional_number("rope_theta", THETA_RANGE)?).unwrap_or_else(|| {
        // This is the default in transformers. The config of Llama 2 relies on it.
        notes.push("config.json has no rope_theta: using 10000".into());
        10_000.0
    });
    let partial = architecture.rope == RopeEntries::Partial;
    let width = parse_rotary_dim(entries, architecture, head_dim)?;
    let scaling = inner.map_or(Ok(None), |inner| parse_scaling(&inner, entries, partial, width))?;
    Ok(Rope { theta, scaling })
}

/// Parses Gemma 3's two embeddings. In the old format `rope_theta` and `rope_scaling` apply to full-attention layers
/// and `rope_local_base_freq` to sliding-window layers. In the new format, each layer type has its own map.
fn parse_by_window(entries: &Entries<'_>, head_dim: usize) -> Result<(Rope, Option<Rope>)> {
    let (old, new) = rope_sections(entries)?;
    if let Some(flat) =
        new.as_ref().filter(|section| section.map.values().any(|value| !value.is_object() && !value.is_null()))
    {
        // transformers would ignore such entries and use the defaults for both layer types.
        let expected = "full_attention and sliding_attention, each a map";
        return Err(Error::bad_input("unsupported value in the config")
            .at("rope_parameters")
            .expected(expected)
            .found(flat.map.keys().cloned().collect::<Vec<_>>().join(", ")));
    }
    let parse_layer_type =
        |kind: &'static str, outer: &'static str, default: f64, old: Option<Entries<'_>>| -> Result<Rope> {
            let layer_type_entries = new.as_ref().map_or(Ok(None), |section| section.map_at(kind))?;
            let inner = layer_type_entries.or(old);
            let theta =
                inner.as_ref().map_or(Ok(None), |section| section.optional_number("rope_theta", THETA_RANGE))?;
            let theta = theta.or(entries.optional_number(outer, THETA_RANGE)?).unwrap_or(default);
            let scaling = inner.map_or(Ok(None), |inner| parse_scaling(&inner, entries, false, head_dim))?;
            Ok(Rope { theta, scaling })
        };
    let full = parse_layer_type("full_attention", "rope_theta", 1e6, old)?;
    Ok((full, Some(parse_layer_type("sliding_attention", "rope_local_base_freq", 1e4, None)?)))
}

/// Returns the sections `rope_scaling`, if it is not empty, and `rope_parameters`, its replacement in newer configs.
fn rope_sections<'a>(entries: &Entries<'a>) -> Result<(Option<Entries<'a>>, Option<Entries<'a>>)> {
    Ok((entries.map_at("rope_scaling")?.filter(|map| !map.map.is_empty()), entries.map_at("rope_parameters")?))
}

/// Returns the number of rotated channels per head, `int(head_dim · partial_rotary_factor)`.
fn parse_rotary_dim(entries: &Entries<'_>, architecture: &Architecture, head_dim: usize) -> Result<usize> {
    const KEY: &str = "partial_rotary_factor";
    if architecture.rope != RopeEntries::Partial {
        return Ok(head_dim);
    }
    let (old, new) = rope_sections(entries)?;
    let inner = old.or(new).map_or(Ok(None), |section| section.optional_number(KEY, 1e-3..=1.0))?;
    let fraction = inner.or(entries.optional_number(KEY, 1e-3..=1.0)?).unwrap_or(1.0);
    let width = (head_dim as f64 * fraction) as usize;
    if width == 0 || !width.is_multiple_of(2) {
        let found = format!("{fraction} of {head_dim} channels");
        return Err(Error::bad_input("the rotary embedding needs an even number of channels").at(KEY).found(found));
    }
    Ok(width)
}

/// Parses `no_rope_layers`, which contains 1 for a layer with a rotary embedding and 0 for a layer without one.
fn parse_no_rope_layers(entries: &Entries<'_>, layers: usize) -> Result<Vec<bool>> {
    let Some(value) = entries.get(NO_ROPE_LAYERS_KEY) else {
        let every = entries.count(NO_ROPE_INTERVAL_KEY, MAX_CONTEXT_LENGTH)?;
        return Ok((0..layers).map(|layer| !(layer + 1).is_multiple_of(every)).collect());
    };
    let error = || {
        entries.value_error(
            NO_ROPE_LAYERS_KEY,
            &format!("a list of {layers} numbers, 1 for a layer with a rotary embedding, 0 for one without"),
        )
    };
    let list = value.as_array().filter(|list| list.len() == layers).ok_or_else(error)?;
    list.iter().map(|flag| flag.as_u64().filter(|flag| *flag < 2).map(|flag| flag == 1).ok_or_else(error)).collect()
}

/// Parses the original context length, which defaults to `max_position_embeddings`. A top-level entry in the config, as
/// in Phi-3, takes precedence.
fn parse_original_context_length(inner: &Entries<'_>, config: &Entries<'_>) -> Result<usize> {
    const KEY: &str = "original_max_position_embeddings";
    let outer = config.optional_count(KEY, MAX_CONTEXT_LENGTH)?;
    match outer
        .map_or_else(|| inner.optional_count(KEY, MAX_CONTEXT_LENGTH), |original_tokens| Ok(Some(original_tokens)))?
    {
        Some(context) => Ok(context),
        None => config.count("max_position_embeddings", MAX_CONTEXT_LENGTH),
    }
}

fn parse_scaling(inner: &Entries<'_>, config: &Entries<'_>, partial: bool, width: usize) -> Result<Option<Scaling>> {
    // Older configs call the key `type`.
    let rope_type = inner.text("rope_type")?;
    let older = inner.text("type")?;
    let rope_type_name = match rope_type.or(older) {
        // Older Phi-3 configs call the type `su` or `yarn`.
        Some("su" | "yarn") if partial => "longrope",
        other => other.unwrap_or("default"),
    };
    let known_keys: &[&str] = match rope_type_name {
        "default" => &[],
        "longrope" => {
            &["factor", "short_factor", "long_factor", "original_max_position_embeddings", "attention_factor"]
        }
        "linear" | "dynamic" if !partial => &["factor"],
        "llama3" if !partial => &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
        "yarn" => &[
            "factor",
            "beta_fast",
            "beta_slow",
            "original_max_position_embeddings",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
        other => {
            let key = if rope_type.is_some() { "rope_type" } else { "type" };
            let known =
                if partial { "default or longrope" } else { "default, linear, dynamic, llama3, yarn or longrope" };
            return Err(Error::bad_input("unknown RoPE type").at(inner.path(key)).expected(known).found(other));
        }
    };
    for (key, value) in inner.map.iter().filter(|(_, value)| !value.is_null()) {
        let known = match key.as_str() {
            "type" | "rope_type" | "rope_theta" => true,
            "partial_rotary_factor" => partial || value.as_f64() == Some(1.0),
            // Accept any value, because transformers does not read this entry.
            "finetuned" => true,
            key => known_keys.contains(&key),
        };
        if !known {
            return Err(inner
                .unsupported_error(key, value, &format!("an entry of the RoPE type {rope_type_name}"))
                .hint(unknown_entry_hint(rope_type.or(older).is_some())));
        }
    }
    Ok(Some(match rope_type_name {
        "linear" => Scaling::Linear { factor: parse_scaling_factor(inner)? },
        "dynamic" => Scaling::Dynamic {
            factor: parse_scaling_factor(inner)?,
            positions: config.count("max_position_embeddings", MAX_CONTEXT_LENGTH)?,
        },
        "llama3" => Scaling::Llama3(parse_llama3(inner, config)?),
        "yarn" => Scaling::Yarn(parse_yarn(inner, config)?),
        "longrope" => Scaling::LongRope(parse_longrope(inner, config, width)?),
        _ => return Ok(None),
    }))
}

fn unknown_entry_hint(has_rope_type: bool) -> &'static str {
    if has_rope_type {
        "remove the entry, or set the `rope_type` that it belongs to"
    } else {
        "add a `rope_type`: without it, transformers ignores the other entries"
    }
}

fn parse_scaling_factor(inner: &Entries<'_>) -> Result<f64> {
    inner.number("factor", 1.0..=1e6)
}

fn parse_llama3(inner: &Entries<'_>, config: &Entries<'_>) -> Result<Llama3Scaling> {
    let low_freq_factor = inner.number("low_freq_factor", FACTOR_RANGE)?;
    let high_freq_factor = inner.number("high_freq_factor", FACTOR_RANGE)?;
    if high_freq_factor <= low_freq_factor {
        return Err(Error::bad_input("`high_freq_factor` must exceed `low_freq_factor`")
            .at(inner.path("high_freq_factor"))
            .expected(format!("more than low_freq_factor = {low_freq_factor}"))
            .found(high_freq_factor));
    }
    Ok(Llama3Scaling {
        factor: inner.number("factor", 1.0..=1e6)?,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings: parse_original_context_length(inner, config)? as f64,
    })
}

/// Parses the `yarn` parameters, with the defaults of transformers' `_compute_yarn_parameters`.
fn parse_yarn(inner: &Entries<'_>, config: &Entries<'_>) -> Result<Yarn> {
    let original = parse_original_context_length(inner, config)? as f64;
    let factor = match inner.optional_number("factor", 1.0..=1e6)? {
        Some(factor) => factor,
        None => (config.count("max_position_embeddings", MAX_CONTEXT_LENGTH)? as f64 / original).max(1.0),
    };
    let mscale = number_or_default("mscale", 0.0, inner)?;
    let mscale_all_dim = number_or_default("mscale_all_dim", 0.0, inner)?;
    let attention = match inner.optional_number("attention_factor", FACTOR_RANGE)? {
        Some(attention) => attention,
        // The two entries have no effect unless both are nonzero.
        None if mscale != 0.0 && mscale_all_dim != 0.0 => {
            yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
        }
        None => yarn_mscale(factor, 1.0),
    };
    Ok(Yarn {
        factor,
        beta_fast: number_or_default("beta_fast", 32.0, inner)?,
        beta_slow: number_or_default("beta_slow", 1.0, inner)?,
        original_max_position_embeddings: original,
        // transformers ignores this entry in sections for a single layer type.
        truncate: if inner.prefix == "rope_parameters" || inner.prefix == "rope_scaling" {
            inner.flag("truncate")?.unwrap_or(true)
        } else {
            true
        },
        attention,
    })
}

/// Parses a number. Returns `default` if the entry is absent or zero, like Python's `or`.
fn number_or_default(key: &str, default: f64, inner: &Entries<'_>) -> Result<f64> {
    Ok(inner.optional_number(key, 0.0..=1e6)?.filter(|value| *value != 0.0).unwrap_or(default))
}

fn yarn_mscale(scale: f64, mscale: f64) -> f64 {
    if scale <= 1.0 { 1.0 } else { 0.1 * mscale * scale.ln() + 1.0 }
}

/// Parses the `longrope` parameters, with the defaults of transformers' `_compute_longrope_parameters`.
fn parse_longrope(inner: &Entries<'_>, config: &Entries<'_>, width: usize) -> Result<LongRope> {
    let original = parse_original_context_length(inner, config)?;
    let divisors = |key: &str| -> Result<Vec<f64>> {
        let error = || {
            inner.value_error(key, &format!("a list of {} numbers above 0, one for each pair of channels", width / 2))
        };
        let list = inner.get(key).and_then(serde_json::Value::as_array).filter(|list| list.len() == width / 2);
        list.ok_or_else(error)?
            .iter()
            .map(|value| (value.as_f64().filter(|value| (1e-6..=1e9).contains(value))).ok_or_else(error))
            .collect()
    };
    let longest = config.optional_count("max_position_embeddings", MAX_CONTEXT_LENGTH)?.unwrap_or(original);
    let factor = inner.optional_number("factor", FACTOR_RANGE)?.unwrap_or(longest as f64 / original as f64);
    let attention = match inner.optional_number("attention_factor", FACTOR_RANGE)? {
        Some(attention) => attention,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
    };
    Ok(LongRope {
        short: divisors("short_factor")?,
        long: divisors("long_factor")?,
        original_max_position_embeddings: original,
        attention,
    })
}
