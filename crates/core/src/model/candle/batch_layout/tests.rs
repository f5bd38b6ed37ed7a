//! Tests that every row attends to the correct rows, regardless of how the batch is divided into pieces and blocks.

use super::*;
use crate::model::config::Config;

fn batch(segments: &[(usize, Option<usize>)]) -> Batch {
    let mut batch = Batch::default();
    for &(length, parent) in segments {
        batch.push(&vec![0; length], parent);
    }
    batch
}

fn layout(batch: &Batch, piece_tokens: usize, max_scores: usize) -> Layout {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch/llama-gqa/config.json");
    let config = Config::read_file(&file).unwrap();
    let rotaries = Rotaries::new(&config);
    let head_dim = config.head_dim;
    let device = &Device::Cpu;
    let params = LayoutParams { max_scores, windows: &WINDOWS, rotaries: &rotaries, head_dim, device };
    Layout::new(batch, piece_tokens, params).unwrap()
}

const WINDOWS: [Option<usize>; 5] = [None, Some(300), Some(64), Some(3), Some(1)];

/// Returns the keys visible to each query according to its block's mask for `window`.
fn visible_rows(layout: &Layout, window: Option<usize>) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    for piece in &layout.pieces {
        for &(group, index) in &piece.blocks.order {
            let group = &piece.blocks.groups[group];
            let queries = &rows_of_blocks(&group.queries, piece.rows.start)[index];
            let keys = &rows_of_blocks(&group.keys, piece.rows.start)[index];
            let mask: Vec<Vec<f32>> = group.mask(window).unwrap().to_vec2().unwrap();
            for (query, mask) in queries.iter().zip(mask) {
                assert_eq!(*query, all.len(), "blocks must be in the order of their rows");
                all.push(keys.iter().zip(mask).filter(|(_, m)| *m == 0.0).map(|(key, _)| *key).collect());
            }
        }
    }
    all
}

#[test]
fn rows_attend_to_prefix_and_segment_for_any_piece_size() {
    let shapes: [&[(usize, Option<usize>)]; 4] = [
        &[(1, None)],
        &[(128, None), (128, None), (128, None), (100, None), (300, None), (300, None), (5, None)],
        &[(70, None), (3, Some(0)), (62, Some(0)), (200, Some(0)), (5, None), (2, Some(4)), (9, Some(4)), (66, None)],
        &[(600, None), (4, Some(0)), (4, Some(0)), (600, None), (4, Some(3)), (4, Some(3))],
    ];
    for segments in shapes {
        let batch = batch(segments);
        let mut expected: Vec<Vec<usize>> = Vec::new();
        for (index, segment) in batch.segments.iter().enumerate() {
            expected.extend(segment.clone().map(|row| batch.prefix(index).chain(segment.start..row + 1).collect()));
        }
        for piece_tokens in [1, 256, 700, usize::MAX] {
            for max_scores in [1, usize::MAX] {
                let layout = layout(&batch, piece_tokens, max_scores);
                for window in WINDOWS {
                    let expected: Vec<_> = expected
                        .iter()
                        .map(|all| all[all.len().saturating_sub(window.unwrap_or(all.len()))..].to_vec())
                        .collect();
                    assert_eq!(visible_rows(&layout, window), expected, "{segments:?}, window {window:?}");
                }
            }
        }
    }
}

#[test]
fn equal_windows_are_batched_up_to_the_piece_size() {
    let window_layout = layout(&batch(&[(512, None); 8]), usize::MAX, usize::MAX);
    // The groups are the first and second halves of the windows.
    assert_eq!((window_layout.pieces.len(), window_layout.pieces[0].blocks.groups.len()), (1, 2));
    let bounded = layout(&batch(&[(512, None); 8]), usize::MAX, 4 * 256 * 256);
    assert_eq!(bounded.pieces[0].blocks.groups.iter().map(|group| group.queries.blocks).max(), Some(4));
    let pieces = layout(&batch(&[(512, None); 8]), 1100, usize::MAX);
    assert_eq!(pieces.pieces.iter().map(|piece| piece.rows.len()).collect::<Vec<_>>(), [1024; 4]);
    let single = layout(&batch(&[(512, None); 3]), 1, usize::MAX);
    assert_eq!(single.pieces.len(), 3, "a tree must not be split");
}

fn rows_of_blocks(rows: &Rows, start: usize) -> Vec<Vec<usize>> {
    let flat: Vec<u32> = match &rows.index {
        Some(index) => index.to_vec1().unwrap(),
        None => rows.first.clone().map(|row| row as u32).collect(),
    };
    flat.chunks(rows.first.len())
        .map(|rows_of_block| rows_of_block.iter().map(|&row| row as usize + start).collect())
        .collect()
}
