//! A registry, a folder and a good grid for all tests of grids.

use std::fs;
use std::path::{Path, PathBuf};

use ghostlab::error::{Error, Result};
use ghostlab::grid::{Cell, Grid, Method, Registry};
use ghostlab::options::{Described, Options};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A house with two criteria and four recoveries. A backbone's file `layers` says how many it has.
pub struct House;

fn described(methods: &[(&'static str, &Value)]) -> Vec<Described> {
    let described = |(name, properties): &(&'static str, &Value)| Described {
        name: (*name).to_owned(),
        label: "",
        options: json!({"description": "A method.", "properties": properties}),
        source: "",
        beyond: false,
        short: name.trim_start_matches("llm-"),
    };
    methods.iter().map(described).collect()
}

/// Refuses the first option that is not one of these texts. The first text of an option is its default.
fn resolve(options: &Options, known: &[(&str, &[&str])]) -> Result<Options> {
    for (key, value) in options {
        let Some((_, values)) = known.iter().find(|(name, _)| name == key) else {
            return Err(Error::bad_input(format!("unknown option `{key}`")));
        };
        if !value.as_str().is_some_and(|text| values.contains(&text)) {
            return Err(Error::bad_input(format!("wrong `{key}`")).found(value.to_string()));
        }
    }
    let defaults = known.iter().map(|(key, values)| ((*key).to_owned(), Value::from(values[0])));
    Ok(defaults.chain(options.clone()).collect())
}

impl Registry for House {
    fn layers(&self, backbone_folder: &Path) -> Result<usize> {
        match fs::read_to_string(backbone_folder.join("layers")) {
            Ok(text) => Ok(text.trim().parse().unwrap()),
            Err(_) => Err(Error::bad_input("no backbone").at("config.json")),
        }
    }

    fn criteria(&self) -> Vec<Described> {
        let cosine = json!({"cosine": {"type": "string"}, "last_layer": {"type": "string"}});
        let layers = json!({"layers": {"type": ["array", "null"], "items": {"type": "integer"}}});
        described(&[("llm-streamline", &cosine), ("explicit", &layers)])
    }

    fn recoveries(&self) -> Vec<Described> {
        let ghosted = json!({"solver": {"type": "string"}, "boundary": {"type": "string"}});
        let none = json!({});
        described(&[("none", &none), ("linearpatch-diag", &none), ("linearpatch-rotate", &none), ("ghosted", &ghosted)])
    }

    fn resolve_criterion(&self, name: &str, options: &Options) -> Result<Options> {
        match name {
            "llm-streamline" => {
                resolve(options, &[("cosine", &["channel-series", "token"]), ("last_layer", &["keep", "allow"])])
            }
            "explicit" => match options.get("layers").and_then(Value::as_array) {
                Some(layers) if layers.iter().all(Value::is_u64) => Ok(options.clone()),
                _ => Err(Error::bad_input("wrong `layers`")
                    .found(options.get("layers").map_or_else(String::new, ToString::to_string))),
            },
            other => Err(Error::bad_input(format!("unknown criterion `{other}`")).hint("did you mean it?")),
        }
    }

    fn resolve_recovery(&self, name: &str, options: &Options) -> Result<Options> {
        match name {
            "none" | "linearpatch-diag" | "linearpatch-rotate" => resolve(options, &[]),
            "ghosted" => resolve(options, &[("solver", &["normal", "svd"]), ("boundary", &["region", "layer"])]),
            other => Err(Error::bad_input(format!("unknown recovery `{other}`"))),
        }
    }

    fn rules(&self) -> Vec<&str> {
        vec!["wikitext2", "ptb", "c4"]
    }

    fn tasks(&self) -> Vec<&str> {
        vec!["arc_easy", "copa"]
    }

    fn check_depth(&self, criterion: &Method, _backbone: &str, depth: usize, layers: usize) -> Result<()> {
        if let Some(listed) = criterion.options.get("layers").and_then(Value::as_array) {
            return if listed.len() == depth { Ok(()) } else { Err(Error::bad_input("the list is not the depth")) };
        }
        if depth + 2 <= layers { Ok(()) } else { Err(Error::bad_input("the criterion keeps the first and last layer")) }
    }
}

/// Line numbers in the tests below count from the first line of this text.
pub const GOOD: &str = "\
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

pub struct Place {
    pub root: TempDir,
}

impl Place {
    pub fn new() -> Self {
        // Names are looked up in `./experiments` too: not in the project's own.
        std::env::set_current_dir(std::env::temp_dir()).unwrap();
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("models/english")).unwrap();
        fs::write(root.path().join("models/english/layers"), "16").unwrap();
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
        Grid::load(&self.file(), None, &overrides, &House)
    }

    /// Writes a file, and the folders that it lies in.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A second backbone, `models/NAME`, of so many layers.
    pub fn backbone(&self, name: &str, layers: usize) {
        self.write(&format!("models/{name}/layers"), &layers.to_string());
    }

    /// The labels of a grid's cells.
    pub fn cells(&self, text: &str, overrides: &[&str]) -> Vec<String> {
        labels(&self.load(text, overrides).unwrap().cells)
    }

    /// Refused at this line and column, with these words.
    pub fn refuses(&self, text: &str, overrides: &[&str], at: &str, parts: &[&str]) {
        let (message, code) = self.refusal(text, overrides);
        let place = if at.starts_with("--") { at.to_owned() } else { format!("grid.yaml:{at}") };
        assert!(message.contains(&format!("where:    {place}")), "expected {place} in\n{message}");
        for part in parts {
            assert!(message.contains(part), "expected `{part}` in\n{message}");
        }
        assert_eq!(code, 2, "{message}");
        assert!(message.lines().all(|line| line.len() < 200), "a line is too long:\n{message}");
    }

    /// The message that the grid is refused with, the temporary folder cut off its places.
    pub fn refusal(&self, text: impl AsRef<[u8]>, overrides: &[&str]) -> (String, u8) {
        let error = self.load(text, overrides).expect_err("the grid was accepted");
        (error.to_string().replace(&format!("{}/", self.root.path().display()), ""), error.exit_code())
    }
}

/// The good grid with `from` replaced; the text must be there, or a test would test nothing.
pub fn good_but(from: &str, to: &str) -> String {
    assert_eq!(GOOD.matches(from).count(), 1, "`{from}` must occur once");
    GOOD.replace(from, to)
}

/// All that a cell is, whatever its name has of it: `english/llm-streamline/3/ghosted/wiki:32x512@0`, or `english/dense`.
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

/// The good grid without the axes of a cut, and with more keys at its end.
pub fn dense_with(more: &str) -> String {
    let cuts = "criterion: llm-streamline\ndepth: [3, 5]\nrecovery: [none, ghosted]\n\
                calibration:\n  - {corpus: wiki, sequences: 32, length: 512}\n";
    good_but(cuts, "") + more
}

/// The good grid with more keys at its end.
pub fn with(more: &str) -> String {
    format!("{GOOD}{more}")
}

/// The blocks of YAML in one of the project's documents that stand for a whole grid.
pub fn examples(document: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document)).unwrap();
    let blocks = text.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap().to_owned());
    let grids: Vec<String> =
        blocks.filter(|block| block.contains("evaluate:") && block.contains("backbone:")).collect();
    assert!(!grids.is_empty(), "{document} has no example");
    grids
}
