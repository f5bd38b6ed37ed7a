//! The README's text and picture of the recorded run: generated from `results/` by `just docs`, and checked here.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ghostlab::artifact::claims::headline;
use ghostlab::results::record::{Condition, DENSE, Record};
use ghostlab::results::{BestCounts, SeedCounts, StoredResults};
use ghostlab::{criterion, recovery};

/// Markers around the generated part of the README.
const BEGIN: &str = "<!-- Made by `just docs` from the recorded run. -->\n";
const END: &str = "<!-- Until here. -->\n";
/// The criterion whose cuts are repaired.
const CUT: &str = "llm-streamline";

/// A cut of the paper's table: backbone, layers removed, layers.
type Cut = (String, usize, usize);

/// A record's rows: criterion and recovery.
type Method = (String, String);

fn once<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.fold(Vec::new(), |mut seen, item| {
        if !seen.contains(&item) {
            seen.push(item);
        }
        seen
    })
}

/// The numbers of one metric of a recorded artifact.
struct Numbers(Vec<Record>);

impl Numbers {
    fn of(records: Vec<Record>, metric: &str) -> Self {
        Self(records.into_iter().filter(|of| of.metric == metric).collect())
    }

    fn cuts(&self) -> Vec<Cut> {
        let pruned = self.0.iter().map(|of| &of.condition).filter(|of| of.depth > 0);
        once(pruned.map(|of| (of.backbone.clone(), of.depth, of.layers)))
    }

    fn value(&self, cut: &Cut, method: (&str, &str)) -> f64 {
        let values = self.values(cut, method);
        assert_eq!(values.len(), 1, "{cut:?} {method:?} stands for another number of numbers than one");
        values[0]
    }

    /// The value under each seed.
    fn values(&self, cut: &Cut, method: (&str, &str)) -> Vec<f64> {
        let depth = if method.0 == DENSE { 0 } else { cut.1 };
        let fits = |of: &&Record| {
            let of = &of.condition;
            (of.backbone.as_str(), of.depth, of.criterion.as_str(), of.recovery.as_str())
                == (cut.0.as_str(), depth, method.0, method.1)
        };
        self.0.iter().filter(fits).map(|of| of.value.unwrap()).collect()
    }

    /// Returns the methods: criteria without a repair, the repairs' criterion last, then the repairs.
    fn methods(&self) -> Vec<Method> {
        let pruned = self.0.iter().map(|of| &of.condition).filter(|of| of.depth > 0);
        let mut all = once(pruned.map(|of| (of.criterion.clone(), of.recovery.clone())));
        all.sort_by_key(|(criterion, recovery)| (criterion == CUT, recovery != recovery::NONE));
        all
    }

    fn repairs(&self) -> Vec<String> {
        self.methods().into_iter().map(|(_, recovery)| recovery).filter(|of| of != recovery::NONE).collect()
    }
}

fn shown((backbone, depth, layers): &Cut) -> String {
    format!("{backbone} {depth}/{layers}")
}

fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}

/// Formats a row per method and a column per cut.
fn table(numbers: &Numbers) -> String {
    let cuts = numbers.cuts();
    let row = |name: &str, texts: Vec<String>| format!("| {name} | {} |\n", texts.join(" | "));
    let mut text = row("", cuts.iter().map(shown).collect()).replacen("|  |", "| |", 1);
    text += &format!("| --- |{}\n", " ---: |".repeat(cuts.len()));
    let printed =
        |cut: &Cut, (criterion, recovery): (&str, &str)| format!("{:.2}", numbers.value(cut, (criterion, recovery)));
    let dense = (DENSE, recovery::NONE);
    text += &row(criterion::label(DENSE), cuts.iter().map(|cut| printed(cut, dense)).collect());
    let methods = numbers.methods();
    let best = |cut: &Cut| methods.iter().map(|(a, b)| numbers.value(cut, (a, b))).fold(f64::MIN, f64::max);
    for (criterion, recovery) in &methods {
        let cell = |cut: &Cut| match printed(cut, (criterion, recovery)) {
            text if text == format!("{:.2}", best(cut)) => format!("**{text}**"),
            text => text,
        };
        text += &row(&row_name(&(criterion.clone(), recovery.clone())), cuts.iter().map(cell).collect());
    }
    text
}

fn row_name((criterion, recovery): &Method) -> String {
    match recovery.as_str() {
        recovery::NONE => criterion::label(criterion).to_owned(),
        repair => format!("+ {}", recovery::label(repair)),
    }
}

/// Formats what holds of the paper's tables 2 and 3.
fn said(accuracy: &Numbers, perplexity: &Numbers, counts: &BestCounts) -> String {
    let cuts = accuracy.cuts();
    let repairs = accuracy.repairs();
    let ours = repairs.iter().find(|name| recovery::is_ours(name)).unwrap();
    let own = |cut: &Cut| accuracy.value(cut, (CUT, ours));
    let mut text = format!(
        "Settings in which {} has the highest average of the {} repairs and no repair: {counts}.\n",
        recovery::label(ours),
        repairs.len()
    );
    for of in &counts.ahead {
        let name = if of.recovery == recovery::NONE { "no repair" } else { recovery::label(&of.recovery) };
        let _ = writeln!(text, "On {} {name} is ahead.", shown(&(of.backbone.clone(), of.depth, of.layers)));
    }
    // In perplexity.
    let order = ["ghosted", "replaceme-ls", "linearpatch-rotate", recovery::NONE];
    let in_order = |cut: &Cut| {
        order.windows(2).all(|pair| perplexity.value(cut, (CUT, pair[0])) < perplexity.value(cut, (CUT, pair[1])))
    };
    let (kept, lost): (Vec<Cut>, Vec<Cut>) = perplexity.cuts().into_iter().partition(in_order);
    let _ = write!(
        text,
        "In average perplexity (table 3) {} come in the paper's order in {} of {}",
        listed(&order.map(|name| if name == recovery::NONE { "no repair" } else { recovery::label(name) }.to_owned())),
        kept.len(),
        kept.len() + lost.len()
    );
    let lost: Vec<String> = lost.iter().map(shown).collect();
    let _ = writeln!(text, "{}.", if lost.is_empty() { String::new() } else { format!("; not on {}", listed(&lost)) });
    // For other cuts.
    let other: Vec<String> = once(accuracy.methods().into_iter().map(|(criterion, _)| criterion))
        .into_iter()
        .filter(|name| name != CUT)
        .collect();
    let lower: Vec<String> = cuts
        .iter()
        .filter(|cut| other.iter().any(|name| accuracy.value(cut, (name, recovery::NONE)) > own(cut)))
        .map(shown)
        .collect();
    let names: Vec<String> = other.iter().map(|name| criterion::label(name).to_owned()).collect();
    let _ = writeln!(
        text,
        "In the paper {} is everywhere above {} too, which cut other layers and repair nothing; here one of them is above it {}.",
        recovery::label(ours),
        listed(&names),
        if lower.is_empty() { "nowhere".to_owned() } else { format!("on {}", listed(&lower)) }
    );
    text
}

/// Reads the numbers of a recorded artifact, if it is recorded.
fn recorded(root: &Path, artifact: &str) -> Option<StoredResults> {
    let folder = root.join("results").join(artifact).join("tiny");
    folder.join(StoredResults::FILE).is_file().then(|| StoredResults::read(&folder).unwrap())
}

/// Replaces the generated part of a page.
fn with(page: &str, part: &str) -> String {
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    format!("{before}{BEGIN}{part}{END}{after}")
}

#[test]
fn what_the_pages_show_of_the_recorded_run_is_what_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    assert_eq!((readme.matches(BEGIN).count(), readme.matches(END).count()), (1, 1));
    let [second, third, seeds] = ["table2", "table3", "seeds"].map(|artifact| {
        recorded(root, artifact)
            .unwrap_or_else(|| panic!("the repository keeps a recorded run of {artifact} in results/"))
    });
    let cells = second.cells.len();
    assert!(
        readme.contains(&format!("{cells} cells")),
        "the README says another number of cells of table 2 than {cells}"
    );
    let (_, counts) = headline(&second, Some(&seeds)).unwrap();
    let accuracy = Numbers::of(second.records(), "acc_average");
    let perplexity = Numbers::of(third.records(), "ppl_average");
    let part = format!("{}\n{}", table(&accuracy), said(&accuracy, &perplexity, &counts));
    let picture = fs::read_to_string(root.join("results/figure1/tiny/figure1.svg")).unwrap();
    for (file, made) in [("README.md", with(&readme, &part)), ("docs/pictures/figure1.svg", picture)] {
        let file = root.join(file);
        if std::env::var("GHOSTLAB_DOCS").is_ok_and(|asked| asked == "write") {
            fs::write(&file, made).unwrap();
        } else {
            assert!(
                fs::read_to_string(&file).unwrap() == made,
                "{} is stale: `just docs` generates it",
                file.display()
            );
        }
    }
}

/// Builds a cut with a repair that is ahead, and one without.
fn played(metric: &str, values: &[(usize, &str, &str, f64)]) -> Numbers {
    let record = |(depth, criterion, recovery, value): &(usize, &str, &str, f64)| {
        serde_json::from_value(serde_json::json!({
            "backbone": "b", "layers": 16, "depth": depth, "criterion": criterion, "recovery": recovery,
            "finetuned": false, "calibration": "c4", "metric": metric, "value": value, "error": null,
        }))
        .unwrap()
    };
    Numbers::of(values.iter().map(record).collect(), metric)
}

#[test]
fn the_made_part_has_the_best_in_bold_and_says_who_is_ahead() {
    let accuracy = played(
        "acc_average",
        &[
            (0, "dense", "none", 80.0),
            (4, "llm-streamline", "none", 50.0),
            (4, "sleb", "none", 70.0),
            (4, "llm-streamline", "replaceme-ls", 60.0),
            (4, "llm-streamline", "ghosted", 61.0),
            (6, "llm-streamline", "none", 40.0),
            (6, "sleb", "none", 44.0),
            (6, "llm-streamline", "replaceme-ls", 45.0),
            (6, "llm-streamline", "ghosted", 44.5),
        ],
    );
    let names = ["SLEB", "LLM-Streamline", "+ ReplaceMe (LS)", "+ Ghost Layer (Ours)"];
    let rows = table(&accuracy);
    assert!(
        rows.starts_with(
            "| | b 4/16 | b 6/16 |\n| --- | ---: | ---: |\n| Dense | 80.00 | 80.00 |\n| SLEB | **70.00** | 44.00 |\n"
        ),
        "{rows}"
    );
    assert!(rows.contains("| + ReplaceMe (LS) | 60.00 | **45.00** |"), "{rows}");
    assert!(rows.lines().skip(3).map(|row| row.split('|').nth(1).unwrap().trim()).eq(names), "{rows}");
    let perplexity = played(
        "ppl_average",
        &[
            (4, "llm-streamline", "none", 9.0),
            (4, "llm-streamline", "linearpatch-rotate", 8.0),
            (4, "llm-streamline", "replaceme-ls", 7.0),
            (4, "llm-streamline", "ghosted", 7.5),
        ],
    );
    let counts = BestCounts {
        settings: 2,
        best: 1,
        significant: Some(0),
        seed: Some(0),
        over_seeds: Some(SeedCounts { seeds: 5, best: 2 }),
        ahead: vec![Condition { depth: 6, recovery: "replaceme-ls".into(), ..accuracy.0[0].condition.clone() }],
    };
    let said = said(&accuracy, &perplexity, &counts);
    let first = "Settings in which Ghost Layer (Ours) has the highest average of the 2 repairs and no repair: 1 of 2 on seed 0, \
                 significantly in 0 of 2; over five seeds in 2 of 2.\nOn b 6/16 ReplaceMe (LS) is ahead.\n";
    assert!(said.starts_with(first), "{said}");
    assert!(said.contains("in the paper's order in 0 of 1; not on b 4/16."), "{said}");
    assert!(said.contains("above SLEB too") && said.ends_with("here one of them is above it on b 4/16.\n"), "{said}");
}
