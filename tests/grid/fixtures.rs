//! Fixtures shared by the grid tests: a folder, backbones and a valid grid.

use std::fs;
use std::path::{Path, PathBuf};

use ghostlab::error::Result;
use ghostlab::grid::{Cell, Grid};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Writes a backbone with `layers` identical layers whose weights are all zero.
pub fn write_backbone(folder: &Path, layers: usize) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/arch/llama-gqa");
    let mut config: Value = serde_json::from_slice(&fs::read(fixture.join("config.json")).unwrap()).unwrap();
    config["num_hidden_layers"] = layers.into();
    let weights = fs::read(fixture.join("model.safetensors")).unwrap();
    let length = usize::try_from(u64::from_le_bytes(weights[..8].try_into().unwrap())).unwrap();
    let known: Map<String, Value> = serde_json::from_slice(&weights[8..8 + length]).unwrap();
    let mut header = Map::new();
    let mut end = 0;
    for (name, tensor) in known.iter().filter(|(name, _)| *name != "__metadata__") {
        let names = match name.strip_prefix("model.layers.0.") {
            Some(tensor_name) => (0..layers).map(|layer| format!("model.layers.{layer}.{tensor_name}")).collect(),
            None if name.starts_with("model.layers.") => Vec::new(),
            None => vec![name.clone()],
        };
        for name in names {
            let start = end;
            end += tensor["data_offsets"][1].as_u64().unwrap() - tensor["data_offsets"][0].as_u64().unwrap();
            let tensor = json!({"dtype": tensor["dtype"], "shape": tensor["shape"], "data_offsets": [start, end]});
            header.insert(name, tensor);
        }
    }
    let mut header = Value::from(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    // The file must exist, but no test reads it.
    fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    let file = folder.join("model.safetensors");
    fs::write(&file, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len((8 + header.len()) as u64 + end).unwrap();
}

/// Valid grid. The line numbers expected in the tests count from its first line.
pub const VALID_GRID: &str = "\
backbones:
  english: {path: models/english}
corpora:
  wiki: {path: wiki.txt, rule: wikitext2}
  c4: {path: c4.txt, rule: c4, limit: 100}
backbone: english
criterion: llm-streamline
depth: [3, 5]
recovery: [none, ghosted]
calibration:
  - {corpus: wiki, sequences: 32, length: 512}
evaluate:
  perplexity:
    - {corpus: wiki, length: 512}
    - {corpus: c4, length: 512}
";

pub struct GridFolder {
    pub root: TempDir,
}

impl GridFolder {
    pub fn new() -> Self {
        // Names are also looked up in `./experiments`. Leave the checkout so that its `experiments` folder is not
        // found.
        std::env::set_current_dir(std::env::temp_dir()).unwrap();
        let root = tempfile::tempdir().unwrap();
        write_backbone(&root.path().join("models/english"), 16);
        fs::create_dir_all(root.path().join("models/hollow")).unwrap();
        fs::write(root.path().join("wiki.txt"), "text").unwrap();
        fs::write(root.path().join("c4.txt"), "text").unwrap();
        Self { root }
    }

    pub fn file(&self) -> PathBuf {
        self.root.path().join("grid.yaml")
    }

    pub fn load(&self, text: impl AsRef<[u8]>, overrides: &[&str]) -> Result<Grid> {
        fs::write(self.file(), text).unwrap();
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        Grid::load(&self.file(), None, &overrides)
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Writes another backbone to `models/NAME`.
    pub fn add_backbone(&self, name: &str, layers: usize) {
        write_backbone(&self.root.path().join("models").join(name), layers);
    }

    pub fn cells(&self, text: &str, overrides: &[&str]) -> Vec<String> {
        labels(&self.load(text, overrides).unwrap().cells)
    }

    /// Asserts that a grid is rejected at the given line and column, with the given words in the message.
    pub fn assert_rejected(&self, text: &str, overrides: &[&str], at: &str, parts: &[&str]) {
        let (message, code) = self.rejection(text, overrides);
        let position = if at.starts_with("--") { at.to_owned() } else { format!("grid.yaml:{at}") };
        assert!(message.contains(&format!("where:    {position}")), "expected {position} in\n{message}");
        for part in parts {
            assert!(message.contains(part), "expected `{part}` in\n{message}");
        }
        assert_eq!(code, 2, "{message}");
        assert!(message.lines().all(|line| line.len() < 200), "a line is too long:\n{message}");
    }

    /// Returns the error message and the exit code for a rejected grid. The path of the temporary folder is removed
    /// from the message.
    pub fn rejection(&self, text: impl AsRef<[u8]>, overrides: &[&str]) -> (String, u8) {
        let error = self.load(text, overrides).expect_err("the grid was accepted");
        (error.to_string().replace(&format!("{}/", self.root.path().display()), ""), error.exit_code())
    }
}

/// Returns the valid grid with `from` replaced by `to`. `from` must occur exactly once.
pub fn valid_grid_replacing(from: &str, to: &str) -> String {
    assert_eq!(VALID_GRID.matches(from).count(), 1, "`{from}` must occur once");
    VALID_GRID.replace(from, to)
}

/// Returns the valid grid with the given criterion, depth and recovery.
pub fn grid_with_axes(criterion: &str, depth: &str, recovery: &str) -> String {
    let axes = format!("criterion: {criterion}\ndepth: {depth}\nrecovery: {recovery}\n");
    valid_grid_replacing("criterion: llm-streamline\ndepth: [3, 5]\nrecovery: [none, ghosted]\n", &axes)
}

/// Returns a label for each cell that states all of its settings, such as
/// `english/llm-streamline/3/ghosted/wiki:32x512@0` or `english/dense`.
pub fn labels(cells: &[Cell]) -> Vec<String> {
    cells.iter().map(label).collect()
}

pub fn label(cell: &Cell) -> String {
    match (&cell.criterion, &cell.recovery, &cell.calibration) {
        (Some(criterion), Some(recovery), Some(calibration)) => {
            format!("{}/{criterion}/{}/{recovery}/{calibration}", cell.backbone, cell.depth)
        }
        _ => format!("{}/dense", cell.backbone),
    }
}

/// Returns the valid grid without the axes that only pruned cells have. Appends `more` to it.
pub fn dense_grid_with(more: &str) -> String {
    let cuts = "criterion: llm-streamline\ndepth: [3, 5]\nrecovery: [none, ghosted]\n\
                calibration:\n  - {corpus: wiki, sequences: 32, length: 512}\n";
    valid_grid_replacing(cuts, "") + more
}

pub fn valid_grid_with(more: &str) -> String {
    format!("{VALID_GRID}{more}")
}

/// Returns the YAML blocks in a document that are complete grids.
pub fn examples(document: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document)).unwrap();
    let blocks = text.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap().to_owned());
    let grids: Vec<String> =
        blocks.filter(|block| block.contains("evaluate:") && block.contains("backbone:")).collect();
    assert!(!grids.is_empty(), "{document} has no example");
    grids
}

/// Error messages, each below the input that causes it. They are compared with a snapshot.
#[derive(Default)]
pub struct Messages(String);

impl Messages {
    pub fn add(&mut self, input: &str, (message, code): (String, u8)) {
        // Lists of all valid names may exceed the line limit.
        let mut lines = message.lines().filter(|line| !line.starts_with("  expected: one of "));
        assert!(lines.all(|line| line.len() < 200), "a line is too long:\n{message}");
        self.0.push_str(&format!("# {input}\n{message}\nexit code {code}\n\n"));
    }

    /// Compares all messages with `tests/snapshots/NAME.snap`.
    pub fn snapshot(&self, name: &str) {
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots"));
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        // Remove the list of parent folders, which are searched too. They depend on where the temporary folder is.
        settings.add_filter(r"\n {12}/\S+", "");
        settings.add_filter(r"(in the hub's cache) \S+", "$1 CACHE");
        settings.bind(|| insta::assert_snapshot!(name, self.0));
    }
}
