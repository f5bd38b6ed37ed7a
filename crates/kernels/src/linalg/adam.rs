//! Adam and AdamW optimizers. The optimizers of candle-nn do not expose their moments, so they cannot resume an
//! interrupted training run.

use rayon::prelude::*;

/// Adam optimizer with PyTorch's defaults (Kingma and Ba 2015, algorithm 1) and decoupled weight decay (Loshchilov and
/// Hutter 2019, algorithm 2).
#[derive(Debug, Clone, PartialEq)]
pub struct Adam {
    learning_rate: f32,
    weight_decay: f32,
    first_moment: Vec<f32>,
    second_moment: Vec<f32>,
    steps: i32,
}

impl Adam {
    const BETAS: (f32, f32) = (0.9, 0.999);
    const EPSILON: f32 = 1e-8;

    /// Creates the initial optimizer state, without weight decay.
    pub fn new(parameters: usize, learning_rate: f32) -> Self {
        let zeros = vec![0.0; parameters];
        Self { learning_rate, weight_decay: 0.0, first_moment: zeros.clone(), second_moment: zeros, steps: 0 }
    }

    #[must_use]
    pub fn with_weight_decay(mut self, weight_decay: f32) -> Self {
        self.weight_decay = weight_decay;
        self
    }

    /// Restores the state after `steps` steps with the given moments.
    #[must_use]
    pub fn with_state(mut self, steps: usize, first_moment: Vec<f32>, second_moment: Vec<f32>) -> Self {
        (self.first_moment, self.second_moment, self.steps) =
            (first_moment, second_moment, i32::try_from(steps).unwrap_or(i32::MAX));
        self
    }

    pub fn parameters(&self) -> usize {
        self.first_moment.len().min(self.second_moment.len())
    }

    /// Returns the running means of the gradient and of its square.
    pub fn moments(&self) -> (&[f32], &[f32]) {
        (&self.first_moment, &self.second_moment)
    }

    /// Applies one optimizer step to `parameters`. `gradient` has one element per parameter.
    pub fn update(&mut self, parameters: &mut [f32], gradient: &[f32]) {
        self.steps += 1;
        let (b1, b2) = Self::BETAS;
        // Compute the bias corrections in f64, because 1 − 0.999^t loses digits in f32.
        let rate = f64::from(self.learning_rate) / (1.0 - f64::from(b1).powi(self.steps));
        let root = (1.0 - f64::from(b2).powi(self.steps)).sqrt() as f32;
        let rate = rate as f32;
        let decay = 1.0 - self.learning_rate * self.weight_decay;
        let moments = self.first_moment.par_iter_mut().zip(&mut self.second_moment);
        parameters.par_iter_mut().zip(gradient).zip(moments).for_each(|((p, &g), (m, v))| {
            *m = b1 * *m + (1.0 - b1) * g;
            *v = b2 * *v + (1.0 - b2) * g * g;
            *p = decay * *p - rate * *m / (v.sqrt() / root + Self::EPSILON);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adamw_steps_match_algorithm_2_in_f64() {
        let mut ours = [0.5f32, -2.0];
        let mut adam = Adam::new(2, 0.01).with_weight_decay(0.1);
        let mut exact = [(0.5f64, 0.0f64, 0.0f64), (-2.0, 0.0, 0.0)];
        for step in 1..=20 {
            let gradients: Vec<f32> = ours.iter().map(|&p| sample_gradient(step, f64::from(p)) as f32).collect();
            adam.update(&mut ours, &gradients);
            for (p, m, v) in &mut exact {
                let g = sample_gradient(step, *p);
                (*m, *v) = (0.9 * *m + 0.1 * g, 0.999 * *v + 0.001 * g * g);
                let m = *m / (1.0 - 0.9f64.powi(step as i32));
                let v = *v / (1.0 - 0.999f64.powi(step as i32));
                *p -= 0.01 * 0.1 * *p + 0.01 * m / (v.sqrt() + 1e-8);
            }
        }
        for (ours, (exact, ..)) in ours.iter().zip(exact) {
            assert!((f64::from(*ours) - exact).abs() < 1e-6, "{ours} {exact}");
        }
    }

    fn sample_gradient(step: usize, p: f64) -> f64 {
        (step as f64 * 0.7).sin() + 0.3 * p
    }

    #[test]
    fn adam_resumes_from_its_saved_state() {
        let mut uninterrupted = [1.0f32, 2.0];
        let mut cut = [1.0f32, 2.0];
        let mut adam = Adam::new(2, 0.1).with_weight_decay(0.01);
        let mut first = adam.clone();
        for step in 0..6 {
            adam.update(&mut uninterrupted, &[step as f32, 0.5]);
        }
        (0..3).for_each(|step| first.update(&mut cut, &[step as f32, 0.5]));
        let (m, v) = first.moments();
        let mut second = Adam::new(2, 0.1).with_weight_decay(0.01).with_state(3, m.to_vec(), v.to_vec());
        (3..6).for_each(|step| second.update(&mut cut, &[step as f32, 0.5]));
        assert_eq!(uninterrupted.map(f32::to_bits), cut.map(f32::to_bits));
        assert_eq!(adam, second);
    }
}
