//! Spectral clustering of layers, like scikit-learn's
//! `SpectralClustering(affinity="precomputed", assign_labels="kmeans")`.
//!
//! Given the affinity `A` with its diagonal set to zero and the degrees `d = A·1`, the first `K` eigenvectors of the
//! normalized Laplacian `I − D^(−½)·A·D^(−½)`, divided by `√d`, embed each layer in `K` dimensions. k-means clusters
//! the points. It starts from the best partition of the layers into `K` runs of consecutive layers, so the result does
//! not depend on a seed.

use crate::error::{Error, Result};
use crate::linalg::eigen::symmetric_eigen;

/// Maximum number of iterations of k-means, which typically converges after a few.
const MAX_ITERATIONS: usize = 300;

/// Returns the cluster of each layer. Clusters are numbered by their first layer.
///
/// # Shapes
/// `affinity [layers, layers]`, symmetric.
///
/// # Errors
/// Fails if the eigenvectors cannot be computed or an affinity is not finite.
pub(super) fn cluster(affinity: &[f64], layers: usize, clusters: usize) -> Result<Vec<usize>> {
    let points = embed(affinity, layers, clusters)?;
    let labels = k_means(&points, partition_into_runs(&points, clusters), clusters);
    let mut first_seen = Vec::new();
    for &label in &labels {
        if !first_seen.contains(&label) {
            first_seen.push(label);
        }
    }
    Ok(labels.iter().filter_map(|label| first_seen.iter().position(|seen| seen == label)).collect())
}

/// Computes the embedding of each layer, a point with `dimensions` coordinates.
fn embed(affinity: &[f64], layers: usize, dimensions: usize) -> Result<Vec<Vec<f64>>> {
    let off_diagonal = |i: usize, j: usize| if i == j { 0.0 } else { affinity[i * layers + j] };
    let roots: Vec<f64> = (0..layers).map(|i| (0..layers).map(|j| off_diagonal(i, j)).sum::<f64>().sqrt()).collect();
    let mut laplacian = Vec::with_capacity(layers * layers);
    for i in 0..layers {
        laplacian.extend((0..layers).map(|j| f64::from(u8::from(i == j)) - off_diagonal(i, j) / (roots[i] * roots[j])));
    }
    let eigen = symmetric_eigen(&laplacian, layers).ok_or_else(|| {
        Error::job("cannot cluster the layers: computing the eigenvectors of their similarities failed")
            .expected("finite similarities above −1")
    })?;
    let rows = eigen.vectors.chunks_exact(layers).zip(&roots);
    Ok(rows.map(|(row, root)| row[..dimensions].iter().map(|value| value / root).collect()).collect())
}

/// Returns the labels of the partition into `clusters` runs with the smallest sum of squared distances to the runs'
/// means.
fn partition_into_runs(points: &[Vec<f64>], clusters: usize) -> Vec<usize> {
    let layers = points.len();
    // `costs[k][end]` is the minimum cost of splitting the first `end` points into k + 1 runs, and the start of the
    // last run.
    let mut costs = vec![vec![(f64::INFINITY, 0); layers + 1]; clusters];
    for end in 1..=layers {
        costs[0][end] = (run_cost(&points[..end]), 0);
    }
    for runs in 1..clusters {
        for end in runs + 1..=layers {
            for start in runs..end {
                let cost = costs[runs - 1][start].0 + run_cost(&points[start..end]);
                if cost < costs[runs][end].0 {
                    costs[runs][end] = (cost, start);
                }
            }
        }
    }
    let mut labels = vec![0; layers];
    let mut end = layers;
    for run in (0..clusters).rev() {
        let start = costs[run][end].1;
        labels[start..end].fill(run);
        end = start;
    }
    labels
}

fn run_cost(points: &[Vec<f64>]) -> f64 {
    let mean = mean_point(&mut points.iter());
    points.iter().map(|point| squared_distance(point, &mean)).sum()
}

/// Runs Lloyd's algorithm from the given labels until they no longer change.
fn k_means(points: &[Vec<f64>], mut labels: Vec<usize>, clusters: usize) -> Vec<usize> {
    for _ in 0..MAX_ITERATIONS {
        let means: Vec<Vec<f64>> = (0..clusters)
            .map(|cluster| {
                let members = points.iter().zip(&labels).filter(|(_, label)| **label == cluster);
                mean_point(&mut members.map(|(point, _)| point))
            })
            .collect();
        let next: Vec<usize> = points.iter().map(|point| find_nearest_mean(point, &means)).collect();
        let has_empty_cluster = (0..clusters).any(|cluster| !next.contains(&cluster));
        if next == labels || has_empty_cluster {
            break;
        }
        labels = next;
    }
    labels
}

/// Returns the index of the nearest mean. The first wins ties.
fn find_nearest_mean(point: &[f64], means: &[Vec<f64>]) -> usize {
    let distances = means.iter().map(|mean| squared_distance(point, mean)).enumerate();
    distances.reduce(|best, next| if next.1 < best.1 { next } else { best }).map_or(0, |(index, _)| index)
}

fn mean_point(points: &mut dyn Iterator<Item = &Vec<f64>>) -> Vec<f64> {
    let mut sum = Vec::new();
    let mut count = 0.0;
    for point in points {
        sum.resize(point.len(), 0.0);
        sum.iter_mut().zip(point).for_each(|(sum, v)| *sum += v);
        count += 1.0;
    }
    sum.iter_mut().for_each(|sum| *sum /= count);
    sum
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affinity(groups: &[usize]) -> Vec<f64> {
        let pairs = groups.iter().flat_map(|a| groups.iter().map(move |b| (a, b)));
        pairs.map(|(a, b)| if a == b { 0.9 } else { 0.2 }).collect()
    }

    #[test]
    fn blocks_of_similar_layers_are_clustered() {
        for groups in [vec![0, 0, 0, 1, 1], vec![0, 1, 1, 1, 2, 2, 2], vec![0, 0, 0, 0]] {
            let clusters = groups.iter().max().unwrap() + 1;
            assert_eq!(cluster(&affinity(&groups), groups.len(), clusters).unwrap(), groups);
        }
    }

    #[test]
    fn noncontiguous_cluster_is_found() {
        let groups = [0, 0, 0, 1, 1, 1, 0];
        assert_eq!(cluster(&affinity(&groups), 7, 2).unwrap(), groups);
    }

    #[test]
    fn nonfinite_similarities_are_rejected() {
        assert!(cluster(&[1.0, f64::NAN, f64::NAN, 1.0], 2, 2).is_err());
    }
}
