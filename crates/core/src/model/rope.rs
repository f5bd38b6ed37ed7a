//! Rotary position embedding tables.
//!
//! The RoPE types `dynamic` and `longrope` use different frequencies for long and short sequences. transformers applies
//! the frequencies for the longest sequence to the whole batch. This crate rotates each sequence as if it ran alone.
//! Sequences that share a prefix must be in the same length regime ([`Config::length_regime`]), which the callers that
//! build batches ensure.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use candle_core::{Device, Tensor};
use ghostlab_kernels::forward::RotaryTable;

use super::batch::Batch;
use super::config::Config;
use super::decoding::RunPlacement;
use super::rope_config::{Llama3Scaling, Rope, Scaling, Yarn};
use crate::error::{Error, Result};

/// Maximum number of length regimes whose tables are cached.
const MAX_TABLES: usize = 8;

/// Returns the cosines and sines in the given table rows as tensors `[rows, R/2]` on a device. Returns `None` if no
/// channels rotate or there are no rows.
pub(super) fn cos_sin_tensors(
    table: &RotaryTable,
    rows: &[usize],
    device: &Device,
) -> Result<Option<(Tensor, Tensor)>> {
    if table.half == 0 || rows.is_empty() {
        return Ok(None);
    }
    let longest = rows.iter().max().map_or(0, |last| last + 1);
    // If rows share positions, transfer each position only once.
    let deduplicate = !device.is_cpu() && longest < rows.len();
    let positions: Vec<usize> = if deduplicate { (0..longest).collect() } else { Vec::new() };
    let row_indices =
        deduplicate.then(|| Tensor::new(rows.iter().map(|&row| row as u32).collect::<Vec<_>>(), device)).transpose()?;
    let rows = if deduplicate { &positions } else { rows };
    let mut cos = Vec::with_capacity(rows.len() * table.half);
    let mut sin = Vec::with_capacity(rows.len() * table.half);
    for &row in rows {
        cos.extend_from_slice(table.at(row).0);
        sin.extend_from_slice(table.at(row).1);
    }
    let [cos, sin] = [cos, sin].map(|values| -> Result<Tensor> {
        let x = Tensor::from_vec(values, (rows.len(), table.half), device)?;
        Ok(row_indices.as_ref().map_or(Ok(x.clone()), |row_indices| x.index_select(row_indices, 0))?)
    });
    Ok(Some((cos?, sin?)))
}

/// Rotary embedding with tables that grow to the length of the longest sequence so far.
pub(super) struct Rotary {
    rope: Rope,
    /// Number of rotated channels per head. It is 0 for layers without rotary embedding.
    width: usize,
    /// Tables by length regime.
    tables: RwLock<BTreeMap<usize, Arc<RotaryTable>>>,
}

/// Rotary embeddings of a backbone, and the index of the embedding that each layer uses.
pub(super) struct Rotaries {
    /// Embeddings of full-attention layers, sliding-window layers, and layers without rotary embedding. Sliding-window
    /// layers use the first one unless they have separate settings.
    rotaries: Vec<Rotary>,
    rotary_by_layer: Vec<usize>,
}

impl Rotaries {
    pub(super) fn new(config: &Config) -> Self {
        let width = config.rotary_width;
        let window_rope = config.window_rope.as_ref().unwrap_or(&config.rope);
        let rotaries =
            vec![Rotary::new(&config.rope, width), Rotary::new(window_rope, width), Rotary::new(&config.rope, 0)];
        Self { rotaries, rotary_by_layer: (0..config.layers).map(|layer| Self::index(config, layer)).collect() }
    }

    pub(super) fn get(&self, layer: usize) -> &Rotary {
        &self.rotaries[self.rotary_by_layer[layer]]
    }

    /// Applies `make` to each rotary embedding that at least one layer uses. Results for unused embeddings are `None`.
    pub(super) fn map_used<T>(&self, make: impl Fn(&Rotary) -> Result<Option<T>>) -> Result<Vec<Option<T>>> {
        self.rotaries
            .iter()
            .enumerate()
            .map(|(index, rotary)| if self.rotary_by_layer.contains(&index) { make(rotary) } else { Ok(None) })
            .collect()
    }

    /// Returns the index of a layer's rotary embedding.
    pub(super) fn index(config: &Config, layer: usize) -> usize {
        match (config.rotated[layer], config.windows[layer], &config.window_rope) {
            (false, ..) => 2,
            (true, Some(_), Some(_)) => 1,
            _ => 0,
        }
    }
}

impl Rotary {
    pub(super) fn new(rope: &Rope, width: usize) -> Self {
        Self { rope: rope.clone(), width, tables: RwLock::new(BTreeMap::new()) }
    }

    /// Returns the table for a sequence of `positions` tokens. The table covers at least that many positions.
    pub(super) fn table(&self, positions: usize) -> Arc<RotaryTable> {
        self.regime_table(self.regime(positions), positions)
    }

    /// Returns the table for a batch, and the table row for each row of the batch.
    ///
    /// # Errors
    /// Fails if sequences of different regimes share a prefix.
    pub(super) fn batch_table(&self, batch: &Batch) -> Result<(Arc<RotaryTable>, Vec<usize>)> {
        let mut rows = batch.positions();
        let longest = batch.longest();
        if self.regime(longest) == 0 {
            return Ok((self.regime_table(0, longest), rows));
        }
        let lengths = self.sequence_lengths(batch)?;
        let mut firsts: BTreeMap<usize, usize> = BTreeMap::new();
        let mut all = RotaryTable { cos: Vec::new(), sin: Vec::new(), half: self.width / 2 };
        for (segment, &length) in batch.segments.iter().zip(&lengths) {
            let regime = self.regime(length);
            let first = *firsts.entry(regime).or_insert_with(|| {
                let first = all.cos.len() / all.half.max(1);
                let table = self.regime_table(regime, longest);
                all.cos.extend_from_slice(&table.cos);
                all.sin.extend_from_slice(&table.sin);
                first
            });
            rows[segment.clone()].iter_mut().for_each(|row| *row += first);
        }
        Ok((Arc::new(all), rows))
    }

    /// Returns, for each segment, the length of a sequence that contains it. All sequences that contain a segment must
    /// be in the same regime.
    fn sequence_lengths(&self, batch: &Batch) -> Result<Vec<usize>> {
        let ends = (0..batch.segments.len()).map(|s| batch.prefix(s).len() + batch.segments[s].len());
        let mut lengths: Vec<usize> = ends.collect();
        for (segment, parent) in batch.parents.iter().enumerate() {
            let Some(parent) = *parent else { continue };
            // The first continuation of a segment directly follows it.
            if segment == parent + 1 {
                lengths[parent] = lengths[segment];
            } else if self.regime(lengths[segment]) != self.regime(lengths[parent]) {
                return Err(Error::job("sequences with different rotary frequencies share a prefix")
                    .expected("sequence lengths with equal frequencies")
                    .found(format!("{} and {} tokens", lengths[parent], lengths[segment])));
            }
        }
        Ok(lengths)
    }

    /// Returns the table for runs that are decoded together, and the table row for each of their rows. Each run uses
    /// the frequencies for its current length. As in transformers, cached keys are not rotated again.
    pub(super) fn decoding_table(&self, runs: &[RunPlacement<'_>]) -> (Arc<RotaryTable>, Vec<usize>) {
        let position_ranges = runs.iter().map(|run| run.first..run.first + run.rows.len());
        let longest = position_ranges.clone().map(|positions| positions.end).max().unwrap_or(0);
        if self.regime(longest) == 0 {
            return (self.regime_table(0, longest), position_ranges.flatten().collect());
        }
        let mut all = RotaryTable { cos: Vec::new(), sin: Vec::new(), half: self.width / 2 };
        for positions in position_ranges.clone() {
            self.append_rows(&mut all, self.regime(positions.end), positions);
        }
        let rows = position_ranges.map(|positions| positions.len()).sum();
        (Arc::new(all), (0..rows).collect())
    }

    /// Returns the regime for a sequence length ([`Rope::regime`]).
    fn regime(&self, length: usize) -> usize {
        if self.width == 0 { 0 } else { self.rope.regime(length) }
    }

    /// Appends table rows for `positions`, using the frequencies of the given regime.
    fn append_rows(&self, table: &mut RotaryTable, regime: usize, positions: Range<usize>) {
        let (frequencies, attention) = frequencies(&self.rope, self.width, regime);
        // Compute the angle in f32, like transformers, and then its cosine and sine in f64.
        let angles = positions.flat_map(|p| frequencies.iter().map(move |f| f64::from(p as f32 * f)));
        for angle in angles {
            table.cos.push(angle.cos() as f32 * attention);
            table.sin.push(angle.sin() as f32 * attention);
        }
    }

    /// Returns the cached table of a regime, after extending it to at least `positions` positions.
    fn regime_table(&self, regime: usize, positions: usize) -> Arc<RotaryTable> {
        let half = self.width / 2;
        let known = self.tables.read().unwrap_or_else(PoisonError::into_inner).get(&regime).cloned();
        if let Some(known) = known.filter(|table| table.cos.len() >= positions * half) {
            return known;
        }
        // Grow geometrically, because generated text grows by one token at a time.
        let positions = positions.next_power_of_two();
        let mut grown = RotaryTable { cos: Vec::new(), sin: Vec::new(), half };
        self.append_rows(&mut grown, regime, 0..positions);
        let grown = Arc::new(grown);
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        if tables.len() >= MAX_TABLES {
            tables.clear();
        }
        tables.insert(regime, Arc::clone(&grown));
        grown
    }
}

/// Returns the angular frequency of each channel pair and the factor applied to cosines and sines, following
/// transformers' `modeling_rope_utils.py`.
fn frequencies(rope: &Rope, width: usize, regime: usize) -> (Vec<f32>, f32) {
    let powers = |theta: f64| (0..width / 2).map(move |i| theta.powf(f64::from((2 * i) as f32 / width as f32)));
    let plain = || powers(rope.theta).map(|power| (1.0 / power) as f32);
    match &rope.scaling {
        None => (plain().collect(), 1.0),
        Some(Scaling::Linear { factor }) => (plain().map(|frequency| frequency / *factor as f32).collect(), 1.0),
        Some(Scaling::Dynamic { factor, positions }) => {
            let longest = regime.max(*positions) as f64 / *positions as f64;
            let width = width as f64;
            let theta = rope.theta * (factor * longest - (factor - 1.0)).powf(width / (width - 2.0));
            (powers(theta).map(|power| (1.0 / power) as f32).collect(), 1.0)
        }
        Some(Scaling::Llama3(scaling)) => (plain().map(|frequency| scale_llama3(*scaling, frequency)).collect(), 1.0),
        Some(Scaling::Yarn(scaling)) => (scale_yarn(*scaling, rope.theta, plain().collect()), scaling.attention as f32),
        Some(Scaling::LongRope(scaling)) => {
            let divisors = if regime == 0 { &scaling.short } else { &scaling.long };
            (
                powers(rope.theta).zip(divisors).map(|(power, divisor)| (1.0 / (power * divisor)) as f32).collect(),
                scaling.attention as f32,
            )
        }
    }
}

/// Implements transformers' `_compute_llama3_parameters`.
fn scale_llama3(scaling: Llama3Scaling, plain: f32) -> f32 {
    let context = scaling.original_max_position_embeddings;
    let longest = context / scaling.low_freq_factor;
    let shortest = context / scaling.high_freq_factor;
    let frequency = f64::from(plain);
    let wavelength = std::f64::consts::TAU / frequency;
    let scaled = if wavelength < shortest {
        frequency
    } else if wavelength > longest {
        frequency / scaling.factor
    } else {
        let keep =
            (context / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
        (1.0 - keep) * frequency / scaling.factor + keep * frequency
    };
    scaled as f32
}

/// Implements transformers' `_compute_yarn_parameters`.
fn scale_yarn(scaling: Yarn, theta: f64, plain: Vec<f32>) -> Vec<f32> {
    let width = (2 * plain.len()) as f64;
    let [mut low, mut high] = [scaling.beta_fast, scaling.beta_slow].map(|count| {
        let part = scaling.original_max_position_embeddings / (count * std::f64::consts::TAU);
        width * part.ln() / (2.0 * theta.ln())
    });
    if scaling.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(width - 1.0));
    if low == high {
        high += 0.001;
    }
    plain
        .into_iter()
        .enumerate()
        .map(|(i, frequency)| {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let frequency = f64::from(frequency);
            (frequency / scaling.factor * ramp + frequency * (1.0 - ramp)) as f32
        })
        .collect()
}
