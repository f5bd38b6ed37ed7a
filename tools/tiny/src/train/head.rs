//! Final norm, output projection and cross entropy, computed for a few rows at a time to avoid storing all logits.

use super::network::{Network, Tape};
use super::norm;
use super::real::{Real, exponentials};
use ghostlab_core::in_widest;
use ghostlab_core::linalg::gemm::{MatrixView, MatrixViewMut, Update, gemm};

/// Rows whose logits are computed at a time.
const ROWS: usize = 128;

impl Network {
    /// Computes the negative log-likelihood of each target in nats.
    ///
    /// # Shapes
    /// `tape.stream [rows, C]` from [`Network::forward`], `targets [rows]`.
    pub fn losses<R: Real>(&self, weights: &[R], targets: &[u32], tape: &mut Tape<R>, losses: &mut Vec<f64>) {
        self.blocks(weights, targets, tape, losses, |_| {});
    }

    /// Computes losses like [`Network::losses`], and the gradient of `Σ factor · loss` with one factor per target.
    /// Overwrites `tape.d_stream` with the gradient of the stream, and adds that of the weights to `gradient`.
    pub fn losses_back<R: Real>(
        &self,
        weights: &[R],
        targets: &[u32],
        factors: &[R],
        tape: &mut Tape<R>,
        losses: &mut Vec<f64>,
        gradient: &mut [R],
    ) {
        let c = self.config.hidden;
        let mut d_stream = std::mem::take(&mut tape.d_stream);
        d_stream.resize(tape.stream.len(), R::ZERO);
        let mut d_normed = Vec::new();
        self.blocks(weights, targets, tape, losses, |block| {
            let Block { first, rows, vocab, targets, probabilities, normed, stream } = block;
            in_widest!({
                let rows = probabilities.chunks_exact_mut(vocab).zip(targets).zip(&factors[first..first + rows]);
                for ((row, &target), &factor) in rows {
                    row[target as usize] = row[target as usize] - R::ONE;
                    for p in row {
                        *p = *p * factor;
                    }
                }
            });
            let d_logits = MatrixView::rows(probabilities, rows, vocab);
            let place = self.parameters.head.clone();
            gemm(
                MatrixViewMut::rows(&mut gradient[place.clone()], vocab, c),
                Update::Add,
                d_logits.t(),
                MatrixView::rows(normed, rows, c),
            );
            d_normed.resize(rows * c, R::ZERO);
            let table = MatrixView::rows(&weights[place], vocab, c);
            gemm(MatrixViewMut::rows(&mut d_normed, rows, c), Update::Replace, d_logits, table);
            let place = self.parameters.final_norm.clone();
            let out = &mut d_stream[first * c..(first + rows) * c];
            norm::backward(stream, &weights[place.clone()], self.eps, &d_normed, &mut gradient[place], out, false);
        });
        tape.d_stream = d_stream;
    }

    pub fn logits<R: Real>(&self, weights: &[R], tape: &Tape<R>) -> Vec<R> {
        let mut logits = Vec::new();
        self.products(weights, &tape.stream, &mut Vec::new(), &mut logits);
        logits
    }

    /// Computes the norm of some rows of the stream, and their products with the output matrix.
    fn products<R: Real>(&self, weights: &[R], stream: &[R], normed: &mut Vec<R>, logits: &mut Vec<R>) {
        let c = self.config.hidden;
        let vocab = self.config.vocab;
        let rows = stream.len() / self.config.hidden;
        normed.resize(rows * c, R::ZERO);
        norm::forward(stream, &weights[self.parameters.final_norm.clone()], self.eps, normed, false);
        logits.resize(rows * vocab, R::ZERO);
        let table = MatrixView::rows(&weights[self.parameters.head.clone()], vocab, c);
        let to = MatrixViewMut::rows(logits, rows, vocab);
        let rows = MatrixView::rows(normed, rows, c);
        gemm(to, Update::Replace, rows, table.t());
    }

    fn blocks<R: Real>(
        &self,
        weights: &[R],
        targets: &[u32],
        tape: &mut Tape<R>,
        losses: &mut Vec<f64>,
        mut then: impl FnMut(Block<'_, R>),
    ) {
        let c = self.config.hidden;
        let vocab = self.config.vocab;
        let Tape { stream, logits, normed, .. } = tape;
        for (index, (stream, targets)) in stream.chunks(ROWS * c).zip(targets.chunks(ROWS)).enumerate() {
            let rows = targets.len();
            self.products(weights, stream, normed, logits);
            in_widest!({
                for (row, &target) in logits.chunks_exact_mut(vocab).zip(targets) {
                    let logit = row[target as usize];
                    let (shift, sum) = exponentials(row);
                    losses.push(shift.wide() + sum.wide().ln() - logit.wide());
                    let scale = R::ONE / sum;
                    for p in row {
                        *p = *p * scale;
                    }
                }
            });
            then(Block { first: index * ROWS, rows, vocab, targets, probabilities: logits, normed, stream });
        }
    }
}

/// Block of rows between forward and backward.
struct Block<'a, R> {
    first: usize,
    rows: usize,
    vocab: usize,
    targets: &'a [u32],
    probabilities: &'a mut [R],
    normed: &'a [R],
    stream: &'a [R],
}
