use super::super::attention;
use super::*;

/// Segments of a batch, each with its parent, if any.
struct Batch {
    rows: Vec<Range<usize>>,
    parents: Vec<Option<usize>>,
}

impl Batch {
    fn segments(&self) -> Segments<'_> {
        Segments { rows: &self.rows, parents: &self.parents }
    }

    fn tokens(&self) -> usize {
        self.rows.last().map_or(0, |segment| segment.end)
    }

    fn positions(&self) -> Vec<usize> {
        (0..self.rows.len())
            .flat_map(|segment| {
                let before = self.segments().prefix(segment).len();
                before..before + self.rows[segment].len()
            })
            .collect()
    }
}

/// Computes attention by its definition in f64, one query at a time.
fn attention_by_definition(
    qkv: &[f32],
    [h, k, d]: [usize; 3],
    window: usize,
    batch: &Batch,
    table: &RotaryTable,
) -> Vec<f32> {
    let stride = (h + 2 * k) * d;
    let positions = batch.positions();
    let rotated = |row: usize, column: usize| -> Vec<f64> {
        let x = &qkv[row * stride + column * d..][..d];
        let (cos, sin) = table.at(positions[row]);
        (0..d)
            .map(|i| {
                let pair = i % (d / 2);
                let other = if i < d / 2 { -x[i + d / 2] } else { x[i - d / 2] };
                f64::from(x[i]) * f64::from(cos[pair]) + f64::from(other) * f64::from(sin[pair])
            })
            .collect()
    };
    let mut out = Vec::new();
    for (index, segment) in batch.rows.iter().enumerate() {
        for query in segment.clone() {
            let all: Vec<usize> = batch.segments().prefix(index).chain(segment.start..query + 1).collect();
            let seen = &all[all.len().saturating_sub(window)..];
            for head in 0..h {
                let q = rotated(query, head);
                let group = head * k / h;
                let weights: Vec<f64> = seen
                    .iter()
                    .map(|&key| {
                        let key = rotated(key, h + group);
                        (q.iter().zip(&key).map(|(a, b)| a * b).sum::<f64>() / (d as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                out.extend((0..d).map(|c| {
                    (seen
                        .iter()
                        .zip(&weights)
                        .map(|(row, w)| w * f64::from(qkv[row * stride + (h + k + group) * d + c]))
                        .sum::<f64>()
                        / total) as f32
                }));
            }
        }
    }
    out
}

/// Compares attention with its definition for six query heads and two key heads, and with several window sizes.
fn compare_with_definition(segments: &[(usize, Option<usize>)]) {
    let [portable, amx] = [Bf16Kernels::Portable, Bf16Kernels::Amx].map(Some);
    for (head_dim, kernels, tolerance) in
        [(8, None, 2e-6), (8, portable, 2e-2), (36, portable, 2e-2), (8, amx, 2e-2), (36, amx, 2e-2)]
    {
        for window in [usize::MAX, 200, 64, 9, 1] {
            let (ours, exact) = compute_both_ways(segments, head_dim, kernels, window);
            let worst = ours.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < tolerance, "{segments:?}, window {window}, in bf16 {kernels:?}: {worst:e}");
        }
    }
}

const HEADS: [usize; 2] = [6, 2];

fn batch(segments: &[(usize, Option<usize>)]) -> Batch {
    let mut batch = Batch { rows: Vec::new(), parents: Vec::new() };
    for &(length, parent) in segments {
        let start = batch.tokens();
        batch.rows.push(start..start + length);
        batch.parents.push(parent);
    }
    batch
}

fn row_width(d: usize) -> usize {
    (HEADS[0] + 2 * HEADS[1]) * d
}

/// Returns sample rows of queries, keys and values.
fn rows(tokens: usize, d: usize) -> Vec<f32> {
    (0..tokens * row_width(d)).map(|i| ((i * 7919) % 1013) as f32 / 500.0 - 1.0).collect()
}

fn table(batch: &Batch, d: usize) -> RotaryTable {
    let positions = batch.positions().into_iter().max().map_or(0, |last| last + 1);
    let angles = (0..positions).flat_map(|position| {
        (0..d / 2).map(move |pair| position as f64 * (10_000f64.powf(-((2 * pair) as f64) / d as f64)))
    });
    let (cos, sin) = angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip();
    RotaryTable { cos, sin, half: d / 2 }
}

fn attention_by_kernels(qkv: &[f32], batch: &Batch, d: usize, kernels: Option<Bf16Kernels>, window: usize) -> Vec<f32> {
    let ([queries, keys], scale) = (HEADS, 1.0 / (d as f32).sqrt());
    let query_norm = None;
    let key_norm = None;
    let params = AttentionParams {
        query_heads: queries,
        kv_heads: keys,
        head_dim: d,
        query_norm,
        key_norm,
        window,
        scale,
        cap: None,
        bf16_kernels: kernels,
    };
    let rotated = prepare_queries_and_keys(qkv, &params, &batch.positions(), &table(batch, d));
    attention(qkv, &rotated, &params, batch.segments()).to_vec()
}

fn compute_both_ways(
    segments: &[(usize, Option<usize>)],
    d: usize,
    kernels: Option<Bf16Kernels>,
    window: usize,
) -> (Vec<f32>, Vec<f32>) {
    let ([h, k], batch) = (HEADS, batch(segments));
    let qkv = rows(batch.tokens(), d);
    (
        attention_by_kernels(&qkv, &batch, d, kernels, window),
        attention_by_definition(&qkv, [h, k, d], window, &batch, &table(&batch, d)),
    )
}

#[test]
fn bf16_attention_row_is_independent_of_other_segments() {
    // Odd lengths show whether bf16 pairs start at the segment, rather than at the batch or at a preceding sibling.
    let all = [(3, None), (45, None), (7, Some(1)), (70, Some(1)), (33, None), (5, Some(4))];
    let full_batch = batch(&all);
    let d = 8;
    let qkv = rows(full_batch.tokens(), d);
    let windows = [usize::MAX, 64, 9];
    let kernels = [Bf16Kernels::Portable, Bf16Kernels::Amx];
    for (kernels, window) in kernels.into_iter().flat_map(|kernel| windows.map(|window| (Some(kernel), window))) {
        let batched = attention_by_kernels(&qkv, &full_batch, d, kernels, window);
        for (segment, &(length, parent)) in all.iter().enumerate() {
            let chain: Vec<usize> = parent.into_iter().chain([segment]).collect();
            let lengths: Vec<_> =
                chain.iter().enumerate().map(|(index, &segment)| (all[segment].0, index.checked_sub(1))).collect();
            let select_rows = |numbers: &[f32], width: usize| -> Vec<f32> {
                let rows = chain.iter().map(|&segment| full_batch.rows[segment].clone());
                rows.flat_map(|rows| numbers[rows.start * width..rows.end * width].to_vec()).collect()
            };
            let alone = attention_by_kernels(&select_rows(&qkv, row_width(d)), &batch(&lengths), d, kernels, window);
            let case = format!("segment {segment} of {length}, window {window}, {kernels:?}");
            assert!(alone == select_rows(&batched, HEADS[0] * d), "{case}");
        }
    }
}

#[test]
fn ragged_grouped_query_attention_matches_f64_definition() {
    compare_with_definition(&[(1, None), (65, None), (134, None)]); // one token, one block plus one row, several blocks
}

#[test]
fn branches_attend_to_their_prefix_and_themselves() {
    compare_with_definition(&[(1, None), (1, Some(0)), (1, Some(0))]);
    compare_with_definition(&[(2, None), (0, Some(0)), (3, Some(0)), (0, Some(0))]);
    // Branches across query blocks, a second tree directly after the first, and a plain segment at the end.
    compare_with_definition(&[
        (70, None),
        (3, Some(0)),
        (62, Some(0)),
        (80, Some(0)),
        (5, None),
        (2, Some(4)),
        (9, Some(4)),
        (66, None),
    ]);
}
