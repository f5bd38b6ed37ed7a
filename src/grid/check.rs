//! What the types cannot say: every complaint here points at the line that holds the value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::node::Step::{Item, Key};
use super::node::{Node, Place, Step, Value};
use super::schema::{CalibrationEntry, Corpus, Schema, TaskData};
use super::{Backbone, Calibration, Grid, Method, Registry};
use crate::error::{Error, Result, nearest};
use crate::tasks::Limit;

/// The file that a grid came from.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    /// How messages name it.
    pub(super) file: &'a str,
}

impl Source<'_> {
    pub(super) fn show(&self, place: &Place) -> String {
        match place {
            Place::File { line, column } => format!("{}:{line}:{column}", self.file),
            Place::Set(text) => text.to_string(),
        }
    }
}

struct Checker<'a> {
    root: &'a Node,
    source: &'a Source<'a>,
    registry: &'a dyn Registry,
}

/// Turns what was written into a grid whose cells can be tried.
pub(super) fn check(schema: Schema, root: &Node, source: &Source<'_>, registry: &dyn Registry) -> Result<Grid> {
    let checker = Checker { root, source, registry };
    let name = checker.name(schema.name.as_deref())?;
    checker.axes(&schema)?;
    let backbones = checker.backbones(&schema)?;
    checker.methods("criterion", &schema.criterion, |method| registry.check_criterion(method))?;
    checker.methods("recovery", &schema.recovery, |method| registry.check_recovery(method))?;
    checker.depths(&schema, &backbones)?;
    let calibration = checker.calibrations(&schema)?;
    checker.evaluations(&schema)?;
    let corpora = checker.corpora(&schema)?;
    let tasks = checker.tasks(&schema)?;
    let mut grid = Grid {
        name,
        file: source.path.to_owned(),
        backbones,
        corpora,
        tasks,
        backbone: schema.backbone,
        criterion: schema.criterion,
        depth: schema.depth,
        recovery: schema.recovery,
        calibration,
        evaluate: schema.evaluate,
        cells: Vec::new(),
    };
    grid.cells = grid.cells();
    Ok(grid)
}

impl Checker<'_> {
    fn place(&self, steps: &[Step<'_>]) -> String {
        self.source.show(&self.root.deepest(steps).place)
    }

    fn bad(&self, what: impl Into<String>, steps: &[Step<'_>]) -> Error {
        Error::bad_input(what).at(self.place(steps))
    }

    /// The name becomes a folder below the results, and must not lead out of them.
    fn name(&self, given: Option<&str>) -> Result<String> {
        let stem = self.source.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = given.map(str::to_owned).or(stem).unwrap_or_default();
        let is_plain = !name.is_empty()
            && !name.starts_with('.')
            && name.trim() == name
            && !name.contains(|c: char| c.is_control() || matches!(c, '/' | '\\' | ':'));
        if is_plain {
            return Ok(name);
        }
        Err(self
            .bad("the grid's name cannot name a folder", &[Key("name")])
            .expected("a plain name without `/`, `\\` or `:`, not starting with a dot")
            .found(format!("`{name}`"))
            .hint("the results are written to a folder of this name"))
    }

    /// No axis is empty, and no value stands on one twice.
    fn axes(&self, schema: &Schema) -> Result<()> {
        self.axis(&[Key("backbone")], &schema.backbone)?;
        self.axis(&[Key("criterion")], &schema.criterion)?;
        self.axis(&[Key("depth")], &schema.depth)?;
        self.axis(&[Key("recovery")], &schema.recovery)?;
        self.axis(&[Key("calibration")], &schema.calibration.iter().map(calibration).collect::<Vec<_>>())?;
        let Value::Map(evaluations) = &self.root.deepest(&[Key("evaluate")]).value else {
            return Ok(());
        };
        if evaluations.is_empty() {
            return Err(self
                .bad("the grid evaluates nothing", &[Key("evaluate")])
                .expected("`perplexity: [{corpus: …, length: …}]` or `tasks: [arc_easy, …]`, or both")
                .found("an empty map"));
        }
        let evaluate = &schema.evaluate;
        let perplexity: Vec<String> =
            evaluate.perplexity.iter().map(|p| format!("{}@{}", p.corpus, p.length)).collect();
        let tasks: Vec<String> = evaluate.tasks.iter().map(ToString::to_string).collect();
        for (key, values) in [("perplexity", perplexity), ("tasks", tasks)] {
            // A list that is written out and empty is a mistake; one that is left out is not.
            if !values.is_empty() || evaluations.iter().any(|entry| entry.key == key) {
                self.axis(&[Key("evaluate"), Key(key)], &values)?;
            }
        }
        Ok(())
    }

    fn axis<T: PartialEq + ToString>(&self, steps: &[Step<'_>], values: &[T]) -> Result<()> {
        let names: Vec<&str> = steps.iter().map(|step| if let Key(key) = step { key } else { "" }).collect();
        let name = names.join(".");
        if values.is_empty() {
            return Err(self
                .bad(format!("the axis `{name}` is empty"), steps)
                .expected("at least one value")
                .found("an empty list")
                .hint("without a value on each axis there is no cell to run"));
        }
        for (i, value) in values.iter().enumerate() {
            if let Some(first) = values[..i].iter().position(|earlier| earlier == value) {
                let at = |i| [steps, &[Item(i)]].concat();
                return Err(self
                    .bad(format!("the axis `{name}` has the same value twice"), &at(i))
                    .expected("each value once")
                    .found(format!("`{}`, which stands already at {}", value.to_string(), self.place(&at(first))))
                    .hint("remove one of the two"));
            }
        }
        Ok(())
    }

    /// The backbones on the axis, each with its folder and its number of layers.
    fn backbones(&self, schema: &Schema) -> Result<BTreeMap<String, Backbone>> {
        let mut backbones = BTreeMap::new();
        for (i, name) in schema.backbone.iter().enumerate() {
            let entry = schema
                .backbones
                .get(name)
                .ok_or_else(|| self.unknown("backbone", name, schema.backbones.keys(), &[Key("backbone"), Item(i)]))?;
            let steps = [Key("backbones"), Key(name), Key("path")];
            let path = self.resolve(&entry.path, &steps);
            if !path.is_dir() {
                return Err(self.absent("the backbone's folder", "a folder", &path, &steps));
            }
            let layers = self.registry.layers(&path).map_err(|error| error.at(self.place(&steps)))?;
            backbones.insert(name.clone(), Backbone { path, layers });
        }
        Ok(backbones)
    }

    fn methods(&self, axis: &str, methods: &[Method], check: impl Fn(&Method) -> Result<()>) -> Result<()> {
        methods
            .iter()
            .enumerate()
            .try_for_each(|(i, method)| check(method).map_err(|error| error.at(self.place(&[Key(axis), Item(i)]))))
    }

    fn depths(&self, schema: &Schema, backbones: &BTreeMap<String, Backbone>) -> Result<()> {
        for (i, &depth) in schema.depth.iter().enumerate() {
            let steps = [Key("depth"), Item(i)];
            if depth == 0 {
                return Err(self
                    .bad("a depth is 0", &steps)
                    .expected("how many layers to remove, 1 or more")
                    .found("0")
                    .hint("leave it out: the dense backbone is in every grid"));
            }
            for (name, &Backbone { layers, .. }) in backbones {
                if depth >= layers {
                    return Err(self
                        .bad(format!("a depth would leave nothing of the backbone `{name}`"), &steps)
                        .expected(format!("a number below {layers}, the layers of `{name}`"))
                        .found(depth.to_string())
                        .hint(format!("remove at most {} layers", layers.saturating_sub(1))));
                }
                for criterion in &schema.criterion {
                    let checked = self.registry.check_depth(criterion, name, depth, layers);
                    checked.map_err(|error| error.at(self.place(&steps)))?;
                }
            }
        }
        Ok(())
    }

    fn calibrations(&self, schema: &Schema) -> Result<Vec<Calibration>> {
        for (i, entry) in schema.calibration.iter().enumerate() {
            let at = |key| [Key("calibration"), Item(i), Key(key)];
            self.known_corpus(schema, &entry.corpus, &at("corpus"))?;
            self.at_least(1, entry.sequences, "the number of calibration sequences", &at("sequences"))?;
            self.at_least(2, entry.length, "the length of a calibration sequence", &at("length"))?;
            if let Some(operator) = entry.operator_sequences {
                let steps = at("operator_sequences");
                self.at_least(1, operator, "the number of sequences for the operator", &steps)?;
                if operator > entry.sequences {
                    return Err(self
                        .bad("the operator wants more sequences than there are", &steps)
                        .expected(format!("at most {}, the entry's `sequences`", entry.sequences))
                        .found(operator.to_string())
                        .hint("leave `operator_sequences` out to use all"));
                }
            }
        }
        Ok(schema.calibration.iter().map(calibration).collect())
    }

    fn evaluations(&self, schema: &Schema) -> Result<()> {
        for (i, entry) in schema.evaluate.perplexity.iter().enumerate() {
            let at = |key| [Key("evaluate"), Key("perplexity"), Item(i), Key(key)];
            self.known_corpus(schema, &entry.corpus, &at("corpus"))?;
            self.at_least(2, entry.length, "the length of an evaluation window", &at("length"))?;
        }
        Ok(())
    }

    /// The corpora that calibration and evaluation use.
    fn corpora(&self, schema: &Schema) -> Result<BTreeMap<String, Corpus>> {
        let calibration = schema.calibration.iter().map(|entry| &entry.corpus);
        let used: Vec<&String> = calibration.chain(schema.evaluate.perplexity.iter().map(|e| &e.corpus)).collect();
        let mut corpora = BTreeMap::new();
        for (name, corpus) in schema.corpora.iter().filter(|(name, _)| used.contains(name)) {
            let at = |key| [Key("corpora"), Key(name), Key(key)];
            let rules = self.registry.rules();
            if !rules.contains(&corpus.rule.as_str()) {
                return Err(self.unknown("window rule", &corpus.rule, rules, &at("rule")));
            }
            if let Some(limit) = corpus.limit {
                self.at_least(1, limit, "the limit on evaluation windows", &at("limit"))?;
            }
            let path = self.resolve(&corpus.path, &at("path"));
            if !path.is_file() {
                return Err(self.absent("the corpus", "a file", &path, &at("path")));
            }
            corpora.insert(name.clone(), Corpus { path, ..corpus.clone() });
        }
        Ok(corpora)
    }

    /// The data of the tasks that are scored.
    fn tasks(&self, schema: &Schema) -> Result<BTreeMap<String, TaskData>> {
        let mut tasks = BTreeMap::new();
        for (i, entry) in schema.evaluate.tasks.iter().enumerate() {
            let at = |key| [Key("evaluate"), Key("tasks"), Item(i), Key(key)];
            let Some(data) = schema.tasks.get(&entry.name) else {
                return Err(self.unknown("task", &entry.name, schema.tasks.keys(), &at("name")));
            };
            if let Some(length) = entry.max_length {
                self.at_least(1, length, "the number of tokens that a backbone sees", &at("max_length"))?;
            }
            if let Some(limit) = entry.limit {
                Limit::new(limit).map_err(|error| error.at(self.place(&at("limit"))))?;
            }
            let of = |key| [Key("tasks"), Key(entry.name.as_str()), Key(key)];
            let known = self.registry.tasks();
            let task = data.task.as_ref().unwrap_or(&entry.name);
            if !known.contains(&task.as_str()) {
                return Err(self.unknown("kind of task", task, known, &of("task")));
            }
            let path = self.resolve(&data.path, &of("path"));
            if !path.exists() {
                return Err(self.absent("the task's data", "a file or a folder", &path, &of("path")));
            }
            tasks.insert(entry.name.clone(), TaskData { path, task: Some(task.clone()) });
        }
        Ok(tasks)
    }

    fn known_corpus(&self, schema: &Schema, name: &str, steps: &[Step<'_>]) -> Result<()> {
        if schema.corpora.contains_key(name) {
            return Ok(());
        }
        Err(self.unknown("corpus", name, schema.corpora.keys(), steps))
    }

    fn at_least(&self, least: usize, found: usize, what: &str, steps: &[Step<'_>]) -> Result<()> {
        if found >= least {
            return Ok(());
        }
        let error = self.bad(format!("{what} is too small"), steps).expected(format!("{least} or more"));
        let error = error.found(found.to_string());
        // A lone token has nothing before it that could predict it.
        Err(if least == 2 { error.hint("one token alone predicts nothing") } else { error })
    }

    fn unknown<'n, N: AsRef<str> + 'n + ?Sized>(
        &self,
        kind: &str,
        name: &str,
        known: impl IntoIterator<Item = &'n N>,
        steps: &[Step<'_>],
    ) -> Error {
        let known: Vec<&str> = known.into_iter().map(AsRef::as_ref).collect();
        let error = self.bad(format!("unknown {kind} `{name}`"), steps).found(format!("`{name}`"));
        let error = match known.as_slice() {
            [] => error.expected(format!("the name of a {kind} that the grid defines; it defines none")),
            known => error.expected(format!("one of {}", known.join(", "))),
        };
        match nearest(name, known) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    }

    fn absent(&self, what: &str, kind: &str, path: &Path, steps: &[Step<'_>]) -> Error {
        let found = if path.exists() { "something else of that name" } else { "nothing" };
        Error::missing(format!("{what} is not there"))
            .at(self.place(steps))
            .expected(format!("{kind} at {}", path.display()))
            .found(found)
            .hint(match self.root.deepest(steps).place {
                Place::File { .. } => "a path in a grid starts from the grid file's folder",
                Place::Set(_) => "a path in an override starts from the current folder",
            })
    }

    /// A path in the file starts from the file's folder, one on the command line from the current folder.
    fn resolve(&self, path: &Path, steps: &[Step<'_>]) -> PathBuf {
        match (&self.root.deepest(steps).place, self.source.path.parent()) {
            (Place::File { .. }, Some(folder)) => folder.join(path),
            _ => path.to_owned(),
        }
    }
}

/// The entry with its default filled in, so that two ways to write the same thing are the same.
fn calibration(entry: &CalibrationEntry) -> Calibration {
    let CalibrationEntry { corpus, sequences, length, seed, operator_sequences } = entry;
    Calibration {
        corpus: corpus.clone(),
        sequences: *sequences,
        length: *length,
        seed: *seed,
        operator_sequences: operator_sequences.unwrap_or(*sequences),
    }
}
