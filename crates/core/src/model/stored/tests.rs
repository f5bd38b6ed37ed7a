use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::linalg::bf16::Bf16;
use crate::linalg::float32::F32;
use crate::linalg::gemm::{MatrixView, Update};
use crate::linalg::panels::matmul;
use crate::model::weights::Weights;

/// Writes a file that contains a single tensor `w`.
fn write_weight_file(folder: &Path, dtype: &str, shape: [usize; 2], bytes: &[u8]) {
    let header = json!({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, bytes.len()]}}).to_string();
    let parts = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), bytes].concat();
    std::fs::write(folder.join("model.safetensors"), parts).unwrap();
}

/// Returns a small integer that every float type represents exactly.
fn sample_value(index: usize) -> f32 {
    (index % 253) as f32 - 100.0
}

fn encode_value(dtype: &str, value: f32) -> Vec<u8> {
    match dtype {
        "F64" => f64::from(value).to_le_bytes().to_vec(),
        "F32" => value.to_le_bytes().to_vec(),
        "F16" => f16::from_f32(value).to_le_bytes().to_vec(),
        _ => bf16::from_f32(value).to_le_bytes().to_vec(),
    }
}

#[test]
fn every_dtype_is_read_by_rows_and_transposed() {
    let folder = TempDir::new().unwrap();
    // The shapes cover a matrix smaller than a tile, partial tiles, and several blocks of which the last is shorter.
    for [outer, inner] in [[1, 1], [3, 40], [70, 33], [50, 70_001]] {
        for dtype in ["F64", "F32", "F16", "BF16"] {
            let bytes: Vec<u8> = (0..outer * inner).flat_map(|i| encode_value(dtype, sample_value(i))).collect();
            write_weight_file(folder.path(), dtype, [outer, inner], &bytes);
            let weights = Weights::open(folder.path()).unwrap();
            let values = weights.take("w", &[outer, inner]).unwrap();
            assert!(values.iter().enumerate().all(|(i, &v)| v == sample_value(i)), "{dtype} [{outer}, {inner}]");
            let last = outer as u32 - 1;
            let rows = weights.rows("w", [outer, inner], &[last, 0]).unwrap();
            assert!(rows[..inner] == values[(outer - 1) * inner..] && rows[inner..] == values[..inner]);
            let mut blocks = Vec::new();
            let gathered = weights.read_blocks("w", &[outer, inner], 1000, &mut |block| {
                blocks.extend_from_slice(block);
                Ok(())
            });
            gathered.unwrap();
            assert!(blocks == values, "{dtype} [{outer}, {inner}]");
            let twice = weights.read_transposed(&[("w", outer), ("w", outer)], inner).unwrap();
            assert!(
                twice
                    .iter()
                    .enumerate()
                    .all(|(index, &v)| v == sample_value(index % (2 * outer) % outer * inner + index / (2 * outer))),
                "{dtype} [{outer}, {inner}]"
            );
        }
    }
}

#[test]
fn packed_panels_contain_all_rows_for_any_dtype_and_shape() {
    let folder = TempDir::new().unwrap();
    // The shapes cover a matrix smaller than a panel, an odd width, and rows from two matrices in one panel.
    for [outer, inner] in [[1, 1], [3, 40], [70, 33], [50, 7_001]] {
        for dtype in ["F64", "F32", "F16", "BF16"] {
            let bytes: Vec<u8> = (0..outer * inner).flat_map(|i| encode_value(dtype, sample_value(i))).collect();
            write_weight_file(folder.path(), dtype, [outer, inner], &bytes);
            let weights = Weights::open(folder.path()).unwrap();
            let plain = weights.read_transposed(&[("w", outer), ("w", outer)], inner).unwrap(); // [inner, 2·outer]
            let panels = weights.pack_panels::<Bf16, _>(&[("w", outer), ("w", outer)], inner).unwrap();
            assert_eq!(panels.to_rows(), plain, "{dtype} [{outer}, {inner}]");
            let single = weights.pack_panels::<F32, _>(&[("w", outer), ("w", outer)], inner).unwrap();
            assert_eq!(single.to_rows(), plain, "{dtype} [{outer}, {inner}]");
            // Each row of the identity matrix selects a row of the weights. Integers up to 256 are exact in bf16.
            for k in [0, inner / 2, inner - 1] {
                let mut unit = vec![0.0; inner];
                unit[k] = 1.0;
                let mut row = vec![0.0; 2 * outer];
                matmul(&mut row, Update::Replace, MatrixView::rows(&unit, 1, inner), &panels);
                assert_eq!(row, plain[k * 2 * outer..][..2 * outer], "{dtype} [{outer}, {inner}] row {k}");
            }
        }
    }
}

#[test]
fn every_reader_reports_the_first_nonfinite_value() {
    let folder = TempDir::new().unwrap();
    let [outer, inner] = [50, 70_001];
    for (dtype, value) in [("F64", f32::NAN), ("F32", f32::NAN), ("F16", f32::INFINITY), ("BF16", f32::NEG_INFINITY)] {
        let mut bytes: Vec<u8> = (0..outer * inner).flat_map(|i| encode_value(dtype, sample_value(i))).collect();
        let width = bytes.len() / (outer * inner);
        let first = 40 * inner + 7;
        for index in [first, first + 2, outer * inner - 1] {
            bytes[index * width..(index + 1) * width].copy_from_slice(&encode_value(dtype, value));
        }
        write_weight_file(folder.path(), dtype, [outer, inner], &bytes);
        let weights = Weights::open(folder.path()).unwrap();
        let errors = [
            weights.take("w", &[outer, inner]).unwrap_err(),
            weights.rows("w", [outer, inner], &[0, 40]).unwrap_err(),
            weights.read_transposed(&[("w", outer)], inner).unwrap_err(),
            weights.pack_panels::<Bf16, _>(&[("w", outer)], inner).err().unwrap(),
        ];
        let expected = format!("{value} at element {first} of [50, 70001]");
        for error in errors.map(|error| error.to_string()) {
            assert!(error.contains(&expected) && error.contains("tensor w"), "{error}");
        }
        assert!(weights.rows("w", [outer, inner], &[0, 39]).is_ok(), "other rows must be readable");
    }
}

#[test]
fn file_changed_after_opening_is_rejected_with_its_name() {
    let folder = TempDir::new().unwrap();
    let bytes: Vec<u8> = (0..6).flat_map(|i| encode_value("F32", sample_value(i))).collect();
    write_weight_file(folder.path(), "F32", [2, 3], &bytes);
    let weights = Weights::open(folder.path()).unwrap();
    let path = folder.path().join("model.safetensors");
    let later = path.metadata().unwrap().modified().unwrap() + std::time::Duration::from_secs(2);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    let errors = [
        weights.take("w", &[2, 3]).unwrap_err(),
        weights.rows("w", [2, 3], &[1]).unwrap_err(),
        weights.read_transposed(&[("w", 2)], 3).unwrap_err(),
        weights.pack_panels::<F32, _>(&[("w", 2)], 3).err().unwrap(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(error.exit_code() == 2 && text.contains("changed after it was opened"), "{text}");
        assert!(text.contains("model.safetensors"), "{text}");
    }
}
