//! ReplaceMe with cosine distance: a linear map of the MLP output, trained with Adam (docs/design.md §7). The reference
//! is the ReplaceMe repository.

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Placement, Solution, Span};
use super::method::{ELEMENT_COST, Recovery, RecoveryEntry, RepairTarget};
use super::replaceme_ls::on_branch;
use crate::calibrate::HookPoint;
use crate::corpus::PythonRandom;
use crate::error::Result;
use crate::linalg::adam::Adam;
use crate::linalg::gemm::{MatrixView, MatrixViewMut, Update, gemm_parallel};
use crate::options::{self, Options};
use crate::style::{Dash, Hue, Marker, Style};

pub(super) const ENTRY: RecoveryEntry =
    RecoveryEntry::new::<Cosine>("replaceme-cos", "https://github.com/mts-ai/ReplaceMe", build)
        .label("ReplaceMe (Cos)")
        .style(Style::new(Hue::Sky, Marker::Diamond, Dash::DashDot));

const MAX_EPOCHS: usize = 100_000;
const MAX_BATCH: usize = 1 << 20;

/// Lower bound for norms, as in `torch.nn.functional.cosine_similarity`.
const NORM_EPSILON: f32 = 1e-8;

/// Map `T`, initialized to `I` and trained with Adam on the loss `1 − mean cos(A·T, Y)` over all sequences. `A` and `Y`
/// are those of `replaceme-ls`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Cosine {
    /// Learning rate of Adam.
    learning_rate: f64,
    /// Number of passes over all tokens.
    epochs: usize,
    /// Tokens per step.
    batch: usize,
    /// Order in which tokens are visited.
    order: TokenOrder,
    /// Seed for shuffling.
    seed: u64,
    /// Whether to use one map per region or one per removed layer. Maps of several layers are multiplied.
    boundary: Placement,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum TokenOrder {
    /// New random order in each epoch.
    #[default]
    Shuffled,
    /// Order of the calibration sequences.
    Sequential,
}

impl Default for Cosine {
    /// Returns the default values of the official implementation.
    fn default() -> Self {
        Self {
            learning_rate: 1e-4,
            epochs: 10,
            batch: 1024,
            order: TokenOrder::Shuffled,
            seed: 0,
            boundary: Placement::Region,
        }
    }
}

fn build(name: &str, options: &Options) -> Result<Box<dyn Recovery>> {
    let settings: Cosine = options::read(name, options)?;
    if settings.batch == 0 || settings.batch > MAX_BATCH {
        let expected = format!("a `batch` of 1 to {MAX_BATCH} tokens");
        return Err(options::invalid_options(name, expected, settings.batch));
    }
    if settings.epochs > MAX_EPOCHS {
        return Err(options::invalid_options(name, format!("at most {MAX_EPOCHS} `epochs`"), settings.epochs));
    }
    if !settings.learning_rate.is_finite() || settings.learning_rate <= 0.0 {
        return Err(options::invalid_options(name, "a `learning_rate` above 0", settings.learning_rate));
    }
    Ok(Box::new(settings))
}

impl Recovery for Cosine {
    fn target(&self) -> RepairTarget {
        RepairTarget::Branch
    }

    fn spans(&self, region: Span) -> Vec<Span> {
        self.boundary.spans(region)
    }

    fn sites(&self, span: Span) -> Vec<HookPoint> {
        span.ends_and(HookPoint::Middle)
    }

    fn estimated_operations(&self, channels: usize, rows: usize) -> f64 {
        let c = channels as f64;
        // The cost covers two products with the map, and eight accesses per element: three streams in random order, and
        // two passes in f64.
        self.epochs as f64 * rows as f64 * (4.0 * c * c + 8.0 * ELEMENT_COST * c)
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let channels = boundary.channels();
        let rows = boundary.fitted * boundary.length();
        let mut map = vec![0.0f32; channels * channels];
        map.iter_mut().step_by(channels + 1).for_each(|diagonal| *diagonal = 1.0);
        let mut adam = Adam::new(map.len(), self.learning_rate as f32);
        let mut random = PythonRandom::new(self.seed);
        let mut order: Vec<usize> = (0..rows).collect();
        let mut step = BatchStep::new(channels);
        let mut losses = Vec::new();
        for _ in 0..self.epochs {
            if self.order == TokenOrder::Shuffled {
                shuffle(&mut order, &mut random)?;
            }
            let mut sum = 0.0;
            let mut batches = 0;
            for batch in order.chunks(self.batch) {
                step.read(boundary, batch)?;
                sum += step.loss_and_gradient(&map);
                batches += 1;
                adam.update(&mut map, &step.gradient);
            }
            losses.push(sum / f64::from(batches));
        }
        let mut solution = on_branch(map, boundary)?;
        solution.losses = losses;
        Ok(solution)
    }
}

/// Shuffles a slice in place (Fisher-Yates).
fn shuffle(order: &mut [usize], random: &mut PythonRandom) -> Result<()> {
    for last in (1..order.len()).rev() {
        order.swap(last, random.randint(0, last as u64)? as usize);
    }
    Ok(())
}

/// Buffers for one batch: `A`, `Y`, `A·T` and the gradient.
struct BatchStep {
    channels: usize,
    branch: Vec<f32>,   // [batch, C]
    target: Vec<f32>,   // [batch, C]
    mapped: Vec<f32>,   // [batch, C]
    gradient: Vec<f32>, // [C, C]
}

impl BatchStep {
    fn new(channels: usize) -> Self {
        Self {
            channels,
            branch: Vec::new(),
            target: Vec::new(),
            mapped: Vec::new(),
            gradient: vec![0.0; channels * channels],
        }
    }

    /// Reads the rows of the given tokens into the buffers `A` and `Y`.
    fn read(&mut self, boundary: &Boundary<'_>, tokens: &[usize]) -> Result<()> {
        let c = self.channels;
        for rows in [&mut self.branch, &mut self.target, &mut self.mapped] {
            rows.resize(tokens.len() * c, 0.0);
        }
        let both = self.branch.par_chunks_mut(c).zip(self.target.par_chunks_mut(c));
        tokens.par_iter().zip(both).try_for_each(|(&token, (branch, target))| {
            let rows = token..token + 1;
            let middle = boundary.middle(rows.clone())?;
            subtract(branch, boundary.pre(rows.clone())?, middle);
            subtract(target, boundary.post(rows)?, middle);
            Ok(())
        })
    }

    /// Returns the loss `1 − mean cos(A·T, Y)` of the batch for the map `T`, and writes its derivative with respect to
    /// `T` to `self.gradient`.
    ///
    /// For `p = A·T` at a single token, `∂cos/∂p = y/(‖p‖‖y‖) − cos·p/‖p‖²`, and `∂p/∂T = Aᵀ`.
    fn loss_and_gradient(&mut self, map: &[f32]) -> f64 {
        let c = self.channels;
        let rows = self.branch.len() / self.channels;
        let branch = MatrixView::rows(&self.branch, rows, c);
        gemm_parallel(
            MatrixViewMut::rows(&mut self.mapped, rows, c),
            Update::Replace,
            branch,
            MatrixView::rows(map, c, c),
        );
        let by_token = self.mapped.par_chunks_mut(c).zip(self.target.par_chunks(c));
        let cosines: Vec<f64> = by_token.map(|(mapped, target)| cosine_to_gradient(mapped, target, rows)).collect();
        let mapped = MatrixView::rows(&self.mapped, rows, c);
        gemm_parallel(MatrixViewMut::rows(&mut self.gradient, c, c), Update::Replace, branch.t(), mapped);
        1.0 - cosines.iter().sum::<f64>() / rows as f64
    }
}

fn subtract(out: &mut [f32], x: &[f32], y: &[f32]) {
    out.iter_mut().zip(x.iter().zip(y)).for_each(|(out, (x, y))| *out = x - y);
}

/// Returns the cosine similarity for one token, and replaces `mapped` with the derivative of the batch's loss with
/// respect to `mapped`.
fn cosine_to_gradient(mapped: &mut [f32], target: &[f32], rows: usize) -> f64 {
    let mut dot = 0.0f64;
    let mut pp = 0.0f64;
    let mut yy = 0.0f64;
    for (&p, &y) in mapped.iter().zip(target) {
        let p = f64::from(p);
        let y = f64::from(y);
        dot += p * y;
        pp += p * p;
        yy += y * y;
    }
    let epsilon = f64::from(NORM_EPSILON);
    let p_norm = pp.sqrt().max(epsilon);
    let y_norm = yy.sqrt().max(epsilon);
    let cosine = dot / (p_norm * y_norm);
    let by_target = 1.0 / (p_norm * y_norm);
    let by_self = cosine / (p_norm * p_norm);
    for (p, &y) in mapped.iter_mut().zip(target) {
        *p = ((by_self * f64::from(*p) - by_target * f64::from(y)) / rows as f64) as f32;
    }
    cosine
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_step() -> BatchStep {
        let mut step = BatchStep::new(3);
        step.branch = (0..12).map(|i| ((i * 7 % 5) as f32 - 2.0) * 0.5 + 0.1).collect(); // [4, 3]
        step.target = (0..12).map(|i| ((i * 3 % 7) as f32 - 3.0) * 0.3).collect();
        step.mapped = vec![0.0; 12];
        step
    }

    #[test]
    fn gradient_matches_finite_differences() {
        let map: Vec<f32> = (0..9).map(|i| if i % 4 == 0 { 1.1 } else { 0.2 * i as f32 - 0.7 }).collect();
        let mut gradient_step = sample_step();
        gradient_step.loss_and_gradient(&map);
        for i in 0..9 {
            let [forward, back] = [1e-2, -1e-2].map(|shift| {
                let mut map = map.clone();
                map[i] += shift;
                sample_step().loss_and_gradient(&map)
            });
            let difference = (forward - back) / 2e-2;
            assert!(
                (difference - f64::from(gradient_step.gradient[i])).abs() < 2e-4,
                "{i}: {difference} {}",
                gradient_step.gradient[i]
            );
        }
    }

    #[test]
    fn zero_token_has_zero_gradient() {
        let mut step = BatchStep::new(2);
        (step.branch, step.target, step.mapped) = (vec![0.0; 2], vec![0.0; 2], vec![0.0; 2]);
        assert_eq!(step.loss_and_gradient(&[1.0, 0.0, 0.0, 1.0]), 1.0);
        assert_eq!(step.gradient, [0.0; 4]);
    }

    #[test]
    fn shuffle_is_a_permutation_fixed_by_its_seed() {
        assert_eq!(shuffled_order(1), shuffled_order(1));
        assert_ne!(shuffled_order(1), shuffled_order(2));
        let mut sorted = shuffled_order(1);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }

    fn shuffled_order(seed: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..50).collect();
        shuffle(&mut order, &mut PythonRandom::new(seed)).unwrap();
        order
    }
}
