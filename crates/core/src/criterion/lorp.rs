//! LoRP: groups similar layers into clusters and removes the most redundant layers of the clusters (arXiv 2605.27786).
//! The Ghosted Layers paper does not evaluate it.
//!
//! `S_ij` is the mean token-wise cosine of the streams that enter layers `i` and `j`. The mean over `i < j` gives the
//! redundancy score `RLS = −log₂ mean S` of the backbone. Spectral clustering of `(S + 1)/2` groups the layers into `K`
//! clusters: 2 if RLS is 1 or more, 3 if it is 0.7 or more, otherwise 4.
//!
//! The redundancy of a layer is its mean similarity to the other layers of its cluster. First, the most redundant layer
//! of each cluster is removed. Each further layer comes from the cluster whose remaining layers are most similar, until
//! enough layers are removed. The first and last layers are kept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{
    CalibrationStats, Criterion, CriterionEntry, ITERATIVE, PruneSpec, Selection, any_regions, build, check_depth,
};
use super::spectral;
use crate::calibrate::{Pair, SimilarityAxis};
use crate::error::{Error, Result};

const NAME: &str = "lorp";
pub(super) const ENTRY: CriterionEntry = CriterionEntry::new::<Lorp>(
    NAME,
    "https://github.com/daniel-eai/LoRP-Locality-Aware-Redundancy-Pruning",
    build::<Lorp>,
)
.label("LoRP")
.not_in_paper()
.refusing(ITERATIVE, "it distributes the removed layers over clusters of all layers");

/// Removal of the most redundant layers from clusters of similar layers. The first and last layers are kept.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Lorp {
    /// Number of clusters. Defaults to a value derived from the mean similarity of all layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    clusters: Option<usize>,
}

impl Criterion for Lorp {
    fn check(&self, name: &str, spec: &PruneSpec<'_>) -> Result<()> {
        check_depth(name, "keeps the first and the last layer", spec.layers.saturating_sub(2), spec)?;
        match self.clusters.filter(|clusters| !(1..=spec.layers).contains(clusters)) {
            None => Ok(()),
            Some(clusters) => Err(Error::bad_input(format!("invalid `clusters` of `{NAME}`"))
                .expected(format!("1 to {} clusters for {} layers", spec.layers, spec.layers))
                .found(clusters)),
        }
    }

    fn pairs(&self, spec: &PruneSpec<'_>) -> Vec<Pair> {
        let pairs = (0..spec.layers).flat_map(|from| (from + 1..spec.layers).map(move |to| (from, to)));
        pairs.map(|(from, to)| Pair { axis: SimilarityAxis::Token, from, to }).collect()
    }

    fn regions(&self, spec: &PruneSpec<'_>) -> Vec<(usize, usize)> {
        any_regions(spec).into_iter().filter(|&(start, end)| start > 0 && end < spec.layers).collect()
    }

    fn select(&self, spec: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        let layers = spec.layers;
        let mut values = vec![1.0; layers * layers];
        let pairs = self.pairs(spec);
        let mut sum = 0.0;
        for &pair in &pairs {
            let similarity = stats.similarity(pair)?;
            values[pair.from * layers + pair.to] = similarity;
            values[pair.to * layers + pair.from] = similarity;
            sum += similarity;
        }
        let clusters = self.clusters.unwrap_or_else(|| default_cluster_count(sum / pairs.len() as f64).min(layers));
        let affinity: Vec<f64> = values.iter().map(|similarity| (similarity + 1.0) / 2.0).collect();
        let labels = spectral::cluster(&affinity, layers, clusters)?;
        let order = Clusters::new(&values, &labels, clusters).order_removals(spec.depth);
        let removed: Vec<usize> = order.iter().map(|(layer, _)| *layer).collect();
        // A layer that is alone in its cluster has no redundancy and therefore no score.
        let scores = order.into_iter().filter_map(|(layer, redundancy)| Some((layer, redundancy?))).collect();
        Ok(Selection::from_layers(removed, scores))
    }
}

/// Returns the default number of clusters for a mean similarity over all pairs of layers.
fn default_cluster_count(mean_similarity: f64) -> usize {
    // A mean that is zero or negative indicates no redundancy.
    let score = if mean_similarity > 0.0 { -mean_similarity.log2() } else { f64::INFINITY };
    match score {
        score if score >= 1.0 => 2,
        score if score >= 0.7 => 3,
        _ => 4,
    }
}

/// Clusters from which layers are removed one by one.
struct Clusters<'a> {
    /// Similarity matrix `S [layers, layers]`.
    similarity: &'a [f64],
    layers: usize,
    /// Remaining layers by cluster, in ascending order.
    remaining: Vec<Vec<usize>>,
    /// Candidates by cluster with their redundancy, most redundant first.
    queues: Vec<Vec<(usize, Option<f64>)>>,
}

impl<'a> Clusters<'a> {
    fn new(similarity: &'a [f64], labels: &[usize], clusters: usize) -> Self {
        let layers = labels.len();
        let mut remaining = vec![Vec::new(); clusters];
        for (layer, &cluster) in labels.iter().enumerate() {
            remaining[cluster].push(layer);
        }
        let queues = remaining.iter().map(|members| {
            let candidates = members.iter().filter(|&&layer| layer > 0 && layer + 1 < layers);
            let mut queue: Vec<(usize, Option<f64>)> = candidates
                .map(|&layer| {
                    let others = members.iter().filter(|&&other| other != layer);
                    (layer, mean(others.map(|other| similarity[layer * layers + other])))
                })
                .collect();
            queue.sort_by(|a, b| b.1.unwrap_or(f64::NEG_INFINITY).total_cmp(&a.1.unwrap_or(f64::NEG_INFINITY)));
            queue
        });
        let queues = queues.collect();
        Self { similarity, layers, remaining, queues }
    }

    /// Returns `count` layers in the order of removal, each with its redundancy.
    fn order_removals(mut self, count: usize) -> Vec<(usize, Option<f64>)> {
        let mut order = Vec::new();
        for cluster in 0..self.queues.len() {
            if order.len() < count {
                order.extend(self.remove_most_redundant(cluster));
            }
        }
        while order.len() < count {
            let Some(cluster) = self.find_most_similar_cluster() else { break };
            order.extend(self.remove_most_redundant(cluster));
        }
        order
    }

    /// Removes and returns the most redundant candidate of a cluster.
    fn remove_most_redundant(&mut self, cluster: usize) -> Option<(usize, Option<f64>)> {
        if self.queues[cluster].is_empty() {
            return None;
        }
        let removed = self.queues[cluster].remove(0);
        self.remaining[cluster].retain(|&layer| layer != removed.0);
        Some(removed)
    }

    /// Returns the cluster with the most similar remaining layers, among the clusters that have candidates. The first
    /// cluster wins ties.
    fn find_most_similar_cluster(&self) -> Option<usize> {
        let open = (0..self.queues.len()).filter(|&cluster| !self.queues[cluster].is_empty());
        let similarities = open.map(|cluster| {
            let remaining = &self.remaining[cluster];
            let pairs =
                remaining.iter().enumerate().flat_map(|(index, a)| remaining[index + 1..].iter().map(move |b| (a, b)));
            (cluster, mean(pairs.map(|(a, b)| self.similarity[a * self.layers + b])).unwrap_or(f64::NEG_INFINITY))
        });
        similarities.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(cluster, _)| cluster)
    }
}

/// Returns the mean, or `None` if there are no values.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::criterion::depth::DepthUnit;
    use crate::criterion::rule::tests::select;

    /// Returns similarities that form two clusters. Among layers 0 to 3, layer 1 is most similar to the other layers.
    /// Among layers 4 to 7, layer 6 is.
    fn similarity(pair: Pair) -> f64 {
        let central = [1, 6].iter().any(|layer| [pair.from, pair.to].contains(layer));
        match (pair.from < 4) == (pair.to < 4) {
            true if pair.from < 4 => 0.7 + if central { 0.1 } else { 0.0 },
            true => 0.8 + if central { 0.1 } else { 0.0 },
            false => 0.1,
        }
    }

    fn select_layers(options: &Value, depth: usize) -> (Vec<usize>, Vec<usize>) {
        let spec = PruneSpec { backbone: "b", layers: 8, depth, unit: DepthUnit::Layers };
        let selection = select(&ENTRY, options, &spec, similarity, |_| 0.0).unwrap();
        (selection.removed.whole_layers(), selection.scores.iter().map(|(layer, _)| *layer).collect())
    }

    #[test]
    fn lorp_removes_most_redundant_layer_of_each_cluster_first() {
        let two = json!({"clusters": 2});
        assert_eq!(select_layers(&two, 1), (vec![1], vec![1]));
        assert_eq!(select_layers(&two, 2), (vec![1, 6], vec![1, 6]));
        // After that, layers come from the cluster with the most similar remaining layers until it has no candidates.
        assert_eq!(select_layers(&two, 4).1, [1, 6, 4, 5]);
        assert_eq!(select_layers(&two, 6).1, [1, 6, 4, 5, 2, 3]);
    }

    #[test]
    fn default_cluster_count_follows_mean_similarity() {
        for (mean, clusters) in [(-0.1, 2), (0.0, 2), (0.5, 2), (0.51, 3), (0.61, 3), (0.62, 4), (1.0, 4)] {
            assert_eq!(default_cluster_count(mean), clusters, "{mean}");
        }
    }

    #[test]
    fn too_many_layers_or_clusters_are_rejected() {
        for (options, depth, words) in [(json!({}), 7, "at most 6"), (json!({"clusters": 9}), 1, "1 to 8")] {
            let spec = PruneSpec { backbone: "b", layers: 8, depth, unit: DepthUnit::Layers };
            let text = select(&ENTRY, &options, &spec, similarity, |_| 0.0).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
