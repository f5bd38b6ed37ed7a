//! The jobs of a backbone: what is claimed, scheduled and told of together.

use std::sync::Arc;

use super::{BackbonePlan, JobPlace, StoreState, Variant};
use crate::stage::{Stage, operator};
use ghostlab_store::Key;

impl BackbonePlan {
    /// Its jobs, in the order in which they begin.
    pub fn jobs(&self) -> impl Iterator<Item = JobPlace> + use<> {
        let calibrations = (0..self.calibrations.len()).map(JobPlace::Calibration);
        let evaluations = (0..self.evaluations.len()).map(JobPlace::Evaluation);
        calibrations.chain(evaluations).chain((0..self.latencies.len()).map(JobPlace::Latency))
    }

    /// What the names of a job's claims begin with; its label where no other process shares in it.
    pub fn claim(&self, job: JobPlace) -> String {
        match job {
            JobPlace::Calibration(place) => self.calibrations[place].claim(self),
            JobPlace::Evaluation(place) => self.evaluations[place].journal.clone(),
            JobPlace::Latency(_) => self.label(job),
        }
    }

    /// The variants for which a job has something to make.
    pub fn lacking(&self, job: JobPlace, state: &StoreState) -> Vec<&Variant> {
        self.variants.iter().filter(|variant| variant.made_by(job).any(|key| !state.has(key))).collect()
    }

    /// Bytes that a job for some variants takes beside the weights and a batch. What does not fit where times are measured
    /// is a result of its own.
    pub fn job_bytes(&self, job: JobPlace, variants: &[&Variant]) -> u64 {
        let matrix = operator::matrix_bytes(&self.config);
        match job {
            JobPlace::Calibration(_) => {
                let training = variants.iter().filter_map(|variant| variant.trained.as_ref());
                let training = training.map(|plan| self.config.training_bytes(plan.finetune.length)).max();
                // Four matrices in f64 are the most that solving holds.
                (8 * matrix).max(training.unwrap_or(0))
            }
            // An operator each.
            JobPlace::Evaluation(_) => variants.len() as u64 * matrix,
            JobPlace::Latency(_) => 0,
        }
    }
}

impl Variant {
    /// What a job makes of it.
    pub fn made_by(&self, job: JobPlace) -> impl Iterator<Item = &Arc<Key>> {
        let repaired = matches!(job, JobPlace::Calibration(place) if self.calibration == Some(place));
        let single = match job {
            JobPlace::Calibration(_) => None,
            JobPlace::Evaluation(place) => self.scores.get(place),
            JobPlace::Latency(place) => self.latencies.get(place),
        };
        self.repairs().filter(move |_| repaired).chain(single)
    }

    /// Its artifacts that any machine may make for all.
    pub fn shared_keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.keys().filter(|key| !Stage::is_here(key))
    }
}
