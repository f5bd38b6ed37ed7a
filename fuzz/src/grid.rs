//! Fuzz target for grids, the experiment files of `ghostlab run`.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use ghostlab::grid::Grid;
use tempfile::TempDir;

use super::{assert_user_error, checkout};

/// Returns a temporary folder with all files named in the grids of [`grid_seeds`]. It exists until the process exits.
fn grid_folder() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let made = FOLDER.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("backbone")).unwrap();
        for name in ["config.json", "model.safetensors"] {
            let from = checkout("tests/fixtures/arch/llama-gqa").join(name);
            fs::copy(from, folder.path().join("backbone").join(name)).unwrap();
        }
        fs::write(folder.path().join("train.txt"), "a b c").unwrap();
        fs::write(folder.path().join("copa.jsonl"), "{}").unwrap();
        let made = "task: made\ndataset_path: a/b\ntest_split: test\noutput_type: loglikelihood\ndoc_to_text: q\ndoc_to_target: a\n";
        fs::write(folder.path().join("made.yaml"), made).unwrap();
        folder
    });
    made.path()
}

pub(super) fn grid_seeds() -> Vec<Vec<u8>> {
    let good = "name: g\nbackbones:\n  tiny: {path: backbone}\ncorpora:\n  train: {path: train.txt, rule: wikitext2, limit: 3}\n\
        tasks:\n  copa: {path: copa.jsonl}\nbackbone: [tiny]\ncriterion: [llm-streamline, {name: explicit, order: [1, 2]}]\n\
        depth: [1, 50%]\nrecovery: [none, {name: ghosted, solver: [svd, normal]}, {name: replaceme-cos, epochs: 2}]\n\
        calibration: {corpus: train, sequences: [8, 16], length: 64, seed: 1, operator_sequences: 4}\n\
        exclude: {depth: 1, recovery: ghosted}\ninclude: {criterion: sleb, depth: 1}\n\
        evaluate:\n  perplexity: {corpus: train, length: [32, 64]}\n  tasks: [{name: copa, limit: 0.5, bos: never, max_length: 9}]\n";
    vec![
        good.into(),
        good.replace(
            "[{name: copa",
            "[{definition: made.yaml, data: {test: copa.jsonl}, shots: 2, chat: true, system: s}, {name: copa",
        )
        .into(),
        good.replace("epochs: 2", "epochs: 18446744073709551615").into(),
        good.replace("[8, 16]", "1000000000000").into(),
        good.replace("tiny", "\"a\\e[2J\"").into(),
        good.replace("limit: 0.5", "limit: 1e400").into(),
        b"a: &a [1]\nb: [*a, *a]\n".to_vec(),
        format!("depth: {}", "[".repeat(100_000)).into(),
        (0..30)
            .fold("a0: &a0 [1, 2]\n".to_owned(), |text, i| text + &format!("a{0}: &a{0} [*a{i}, *a{i}]\n", i + 1))
            .into(),
    ]
}

pub(super) fn fuzz_grid(data: &[u8]) {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let path = grid_folder().join("grid.yaml");
    fs::write(&path, data).unwrap();
    match Grid::load(&path, None, &[]) {
        Err(error) => assert_user_error(&error),
        Ok(grid) => {
            assert!(!grid.cells.is_empty() && grid.cells.len() <= 1_000_000);
            for cell in &grid.cells {
                let layers = grid.backbones[&cell.backbone].layers;
                assert!(
                    cell.depth.count < cell.depth.unit.available(layers) + usize::from(!cell.depth.is_in_layers()),
                    "{cell}"
                );
                assert!(!cell.to_string().contains(char::is_control), "{cell}");
            }
            assert!(grid.resolved().is_ok());
            assert_eq!(grid, Grid::load(&path, None, &[]).unwrap(), "two reads differ");
        }
    }
}
