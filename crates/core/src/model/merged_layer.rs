//! Layers whose weights are sums of the weights of several layers.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::files::sha256;

/// A layer with merged weights: each matrix and bias is `Σ factor·θ`, summed in f64 in the order of the layers.
///
/// The position, attention window and rotary embedding are those of [`Self::layer`], and so are the norms unless they
/// are merged too. The factors add up to 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "MergedParts", into = "MergedParts")]
pub struct MergedLayer {
    /// Content hash in hexadecimal.
    key: String,
    parts: MergedParts,
}

/// Serialized fields of a [`MergedLayer`], which determine its key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct MergedParts {
    layer: usize,
    factors: Vec<(usize, i64)>,
    norms: bool,
}

impl From<MergedParts> for MergedLayer {
    fn from(parts: MergedParts) -> Self {
        let mut text = format!("merged {} {}", parts.layer, parts.norms);
        for (layer, factor) in &parts.factors {
            let _ = write!(text, " {layer}:{factor}");
        }
        Self { key: sha256::of_bytes(text), parts }
    }
}

impl From<MergedLayer> for MergedParts {
    fn from(merged: MergedLayer) -> Self {
        merged.parts
    }
}

impl MergedLayer {
    /// Maximum number of merged layers that an engine keeps in memory.
    pub const MAX_CACHED: usize = 8;

    /// Creates a merged layer that replaces `layer`. `factors` lists the source layers and their factors.
    pub fn new(layer: usize, factors: Vec<(usize, i64)>, norms: bool) -> Self {
        MergedParts { layer, factors, norms }.into()
    }

    /// Returns the layer that the merged layer replaces. Its norms are kept unless the norms are merged too.
    pub fn layer(&self) -> usize {
        self.parts.layer
    }

    /// Returns the source layers and their factors, in ascending order.
    pub fn factors(&self) -> impl Iterator<Item = (usize, f64)> {
        self.parts.factors.iter().map(|&(layer, factor)| (layer, factor as f64))
    }

    /// Returns whether the norms are merged as well.
    pub fn has_merged_norms(&self) -> bool {
        self.parts.norms
    }

    /// Returns the content hash in hexadecimal.
    pub fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn key_bytes(&self) -> &[u8] {
        self.key.as_bytes()
    }
}

/// Computes `Σ factor·values` in f64. All sources must have the same length.
pub(crate) fn weighted_sum(sources: &[(f64, &[f32])]) -> Vec<f32> {
    let length = sources.iter().map(|(_, values)| values.len()).min().unwrap_or(0);
    (0..length)
        .map(|i| sources.iter().map(|(factor, values)| factor * f64::from(values[i])).sum::<f64>() as f32)
        .collect()
}

/// Cache for the weights of an engine's merged layers. The least recently used layers are evicted.
pub(super) struct MergedLayerCache<T> {
    cached: Mutex<Vec<(Arc<MergedLayer>, Arc<T>)>>,
}

impl<T> Default for MergedLayerCache<T> {
    fn default() -> Self {
        Self { cached: Mutex::default() }
    }
}

impl<T> MergedLayerCache<T> {
    /// Returns the weights of a merged layer, computing them on first use.
    ///
    /// Other threads wait for the computation, which must not run on the global thread pool. While a thread in that
    /// pool waits for part of the computation, it may start another job that needs the same layer, which would cause a
    /// deadlock.
    pub(super) fn get_or_compute(
        &self,
        merged: &Arc<MergedLayer>,
        compute: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let known = cached.iter().position(|(layer, _)| layer == merged);
        let entry = match known {
            Some(index) => cached.remove(index),
            None => (Arc::clone(merged), Arc::new(compute()?)),
        };
        let weights = Arc::clone(&entry.1);
        cached.push(entry);
        if cached.len() > MergedLayer::MAX_CACHED {
            cached.remove(0);
        }
        Ok(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_layer_round_trips_and_key_covers_all_fields() {
        let merged = MergedLayer::new(2, vec![(2, -1), (3, 1), (4, 1)], false);
        let text = serde_json::to_string(&merged).unwrap();
        assert_eq!(text, r#"{"layer":2,"factors":[[2,-1],[3,1],[4,1]],"norms":false}"#);
        assert_eq!(serde_json::from_str::<MergedLayer>(&text).unwrap(), merged);
        for other in [
            MergedLayer::new(2, vec![(2, -1), (3, 1), (4, 1)], true),
            MergedLayer::new(2, vec![(4, 1)], false),
            MergedLayer::new(3, vec![(2, -1), (3, 1), (4, 1)], false),
        ] {
            assert_ne!(other.key(), merged.key());
        }
    }

    #[test]
    fn merged_layer_cache_evicts_least_recently_used() {
        let layers: Vec<_> = (0..=MergedLayer::MAX_CACHED)
            .map(|layer| Arc::new(MergedLayer::new(layer, vec![(layer, 1)], false)))
            .collect();
        let cache = MergedLayerCache::default();
        layers
            .iter()
            .for_each(|layer| assert_eq!(*cache.get_or_compute(layer, || Ok(layer.layer())).unwrap(), layer.layer()));
        let missing = || Err(crate::error::Error::job("computed again"));
        assert!(cache.get_or_compute(&layers[1], missing).is_ok());
        assert!(cache.get_or_compute(&layers[0], missing).is_err());
    }

    #[test]
    fn merged_weights_are_sums_weighted_by_factors() {
        assert_eq!(weighted_sum(&[(-1.0, &[1.0, 2.0]), (1.0, &[3.0, 5.0]), (1.0, &[0.5, 0.25])]), [2.5, 3.25]);
    }
}
