//! Generates the text and the figure about the recorded run in the README and docs/paper.md from `results/` (`just
//! docs`), and checks that they are up to date.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ghostlab::artifact::claims::{JudgedClaim, Judgement, format_headline, judge_folders};
use ghostlab::results::number_record::{Condition, DENSE, Record};
use ghostlab::results::{BestCounts, SeedCounts, StoredResults};
use ghostlab::{criterion, recovery};

/// Markers around the generated part of the README.
const BEGIN: &str = "<!-- Made by `just docs` from the recorded run. -->\n";
const END: &str = "<!-- Until here. -->\n";
/// Criterion that selects the cuts to repair.
const CUT_CRITERION: &str = "llm-streamline";

/// Cut in the paper's table, as (backbone, removed layers, total layers).
type Cut = (String, usize, usize);

/// Method of a table row, as (criterion, recovery).
type Method = (String, String);

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.fold(Vec::new(), |mut seen, item| {
        if !seen.contains(&item) {
            seen.push(item);
        }
        seen
    })
}

/// Records for one metric of a table.
struct Numbers(Vec<Record>);

impl Numbers {
    fn new(records: Vec<Record>, metric: &str) -> Self {
        Self(records.into_iter().filter(|record| record.metric == metric).collect())
    }

    fn cuts(&self) -> Vec<Cut> {
        let pruned = self.0.iter().map(|record| &record.condition).filter(|condition| condition.depth > 0);
        distinct(pruned.map(|pruned| (pruned.backbone.clone(), pruned.depth, pruned.layers)))
    }

    fn value(&self, cut: &Cut, method: (&str, &str)) -> f64 {
        let values = self.values(cut, method);
        assert_eq!(values.len(), 1, "{cut:?} {method:?} does not match exactly one number");
        values[0]
    }

    /// Returns the values for a method on a cut, one per seed.
    fn values(&self, cut: &Cut, method: (&str, &str)) -> Vec<f64> {
        let depth = if method.0 == DENSE { 0 } else { cut.1 };
        self.0
            .iter()
            .filter(|record| {
                let condition = &record.condition;
                (
                    condition.backbone.as_str(),
                    condition.depth,
                    condition.criterion.as_str(),
                    condition.recovery.as_str(),
                ) == (cut.0.as_str(), depth, method.0, method.1)
            })
            .map(|record| record.value.unwrap())
            .collect()
    }

    /// Returns the methods in the order of the table: the unrepaired criteria by name, ending with the criterion of the
    /// repairs, and then the repairs.
    fn methods(&self) -> Vec<Method> {
        let pruned = self.0.iter().map(|record| &record.condition).filter(|condition| condition.depth > 0);
        let mut all = distinct(pruned.map(|pruned| (pruned.criterion.clone(), pruned.recovery.clone())));
        all.sort_by_key(|(criterion, recovery)| match criterion.as_str() {
            CUT_CRITERION => (true, recovery != recovery::NONE, String::new()),
            other => (false, false, other.to_owned()),
        });
        all
    }

    fn repairs(&self) -> Vec<String> {
        self.methods().into_iter().map(|(_, recovery)| recovery).filter(|name| name != recovery::NONE).collect()
    }
}

fn format_cut((backbone, depth, layers): &Cut) -> String {
    format!("{backbone} {depth}/{layers}")
}

fn join_names(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}

/// Formats a table with one row per method and one column per cut.
fn format_table(numbers: &Numbers) -> String {
    let cuts = numbers.cuts();
    let mut text = markdown_row("", &cuts.iter().map(format_cut).collect::<Vec<_>>()).replacen("|  |", "| |", 1);
    text += &format!("| --- |{}\n", " ---: |".repeat(cuts.len()));
    let printed =
        |cut: &Cut, (criterion, recovery): (&str, &str)| format!("{:.2}", numbers.value(cut, (criterion, recovery)));
    let dense = (DENSE, recovery::NONE);
    let cells: Vec<String> = cuts.iter().map(|cut| printed(cut, dense)).collect();
    text += &markdown_row(criterion::label(DENSE), &cells);
    let methods = numbers.methods();
    for (criterion, recovery) in &methods {
        let cells = cuts.iter().map(|cut| {
            let text = printed(cut, (criterion, recovery));
            let best = methods.iter().map(|(a, b)| numbers.value(cut, (a, b))).fold(f64::MIN, f64::max);
            if text == format!("{best:.2}") { format!("**{text}**") } else { text }
        });
        text += &markdown_row(&row_name(&(criterion.clone(), recovery.clone())), &cells.collect::<Vec<_>>());
    }
    text
}

fn markdown_row(name: &str, texts: &[String]) -> String {
    format!("| {name} | {} |\n", texts.join(" | "))
}

fn row_name((criterion, recovery): &Method) -> String {
    match recovery.as_str() {
        recovery::NONE => criterion::label(criterion).to_owned(),
        repair => format!("+ {}", recovery::label(repair)),
    }
}

/// Profile of the real model.
const REAL_PROFILE: &str = "smollm2";

/// Claims that the real model's results can test, in plain words. Claims with the same wording share one list item.
const PLAIN_CLAIMS: [(&str, &str); 16] = [
    ("abstract-accuracy", FIRST_IN_ACCURACY),
    ("figure1-uncorrected", "other repairs leave most of the error at the cut"),
    ("figure3-substantial", "the best operator has a large anti-symmetric part"),
    ("figure3-comparable", "the best operator has a large anti-symmetric part"),
    ("figure4-baselines-track", "other repairs hardly reduce the error of single channels"),
    ("figure4-baselines-exceed", "some other repair raises the error of most channels"),
    ("figure4-uniform", "Ghost Layer (Ours) reduces the error of nearly all channels"),
    ("figure5-gap-widens", "the lead over the best other repair grows with the depth"),
    ("figure5-highest", FIRST_IN_ACCURACY),
    ("table2-average", "Ghost Layer (Ours) is first or second in accuracy"),
    ("table2-highest", FIRST_IN_ACCURACY),
    ("table5-identical-cost", "Ghost Layer (Ours) needs the same memory and time as Linear Patch"),
    ("table5-linearpatch", "Ghost Layer (Ours) is better than Linear Patch in accuracy and perplexity"),
    ("tableA4-highest", "with fine-tuning, Ghost Layer (Ours) is first in accuracy"),
    ("tableA7-highest", FIRST_IN_ACCURACY),
    ("tableA7-gap-widens", "the lead over the best other repair grows with the depth"),
];
const FIRST_IN_ACCURACY: &str = "on one seed, Ghost Layer (Ours) is first in accuracy";

/// Lists the claims with the given verdict in plain words, each with the number of settings in which it holds.
fn format_claims(judged: &[JudgedClaim<'_>], verdict: Judgement) -> String {
    let mut bullets: Vec<(&str, Vec<String>)> = Vec::new();
    for entry in judged.iter().filter(|entry| entry.ours.outcome == verdict) {
        let known = PLAIN_CLAIMS.iter().find(|(id, _)| *id == entry.claim.id);
        assert!(known.is_some(), "PLAIN_CLAIMS has no text for the claim {}", entry.claim.id);
        let (_, words) = known.unwrap();
        let count = format_settings_count(entry);
        match bullets.iter_mut().find(|(known, _)| known == words) {
            Some((_, counts)) if counts.contains(&count) => {}
            Some((_, counts)) => counts.push(count),
            None => bullets.push((words, vec![count])),
        }
    }
    bullets.iter().map(|(words, counts)| format!("- {}: {words}: {}.\n", verdict.label(), counts.join(", "))).collect()
}

/// Formats a count such as `0 of 2 in table2`, followed by the number of significant settings if there are any.
fn format_settings_count(entry: &JudgedClaim<'_>) -> String {
    let source = entry.claim.id.split('-').next().unwrap().replace("abstract", "table3");
    let significant = entry.ours.best.as_ref().and_then(|best| best.significant).filter(|count| *count > 0);
    let significant = significant.map_or_else(String::new, |count| format!(" ({count} significantly)"));
    format!("{} of {} in {source}{significant}", entry.ours.held, entry.ours.total)
}

/// Evaluates the paper's claims on the recorded results of the real model.
fn judge_real_model(root: &Path) -> Vec<JudgedClaim<'static>> {
    let folders = fs::read_dir(root.join("results")).unwrap().map(|entry| entry.unwrap().path().join(REAL_PROFILE));
    let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.is_dir()).collect();
    folders.sort();
    judge_folders(&folders, REAL_PROFILE).unwrap()
}

/// Formats table 2 for the real model, with the verdicts on the paper's claims.
fn format_real_section(judged: &[JudgedClaim<'_>], real: &StoredResults, seeds: &StoredResults) -> String {
    let (_, counts) = format_headline(real, Some(seeds)).unwrap();
    let [hold, fail, undecided, other] =
        [Judgement::Holds, Judgement::Fails, Judgement::Unknown, Judgement::NotApplicable]
            .map(|verdict| judged.iter().filter(|entry| entry.ours.outcome == verdict).count());
    format!(
        "SmolLM2-135M, a real language model, over six tasks:\n\n{}\n{}Of {} claims of the paper, {hold} hold on this model, \
         {fail} fail, {undecided} are undecided and {other} are about the paper's models.\n\n{}{}{}",
        format_table(&Numbers::new(real.records(), "acc_average")),
        format_leaders(&counts),
        judged.len(),
        format_claims(judged, Judgement::Holds),
        format_claims(judged, Judgement::Fails),
        format_undecided_claims(judged),
    )
}

/// Counts the undecided claims by reason.
fn format_undecided_claims(judged: &[JudgedClaim<'_>]) -> String {
    let unknown = judged.iter().filter(|entry| entry.ours.outcome == Judgement::Unknown);
    let (absent, incomplete): (Vec<_>, Vec<_>) = unknown.partition(|entry| entry.ours.settings.is_empty());
    for entry in &incomplete {
        let mut unknown = entry.ours.settings.iter().filter(|setting| setting.outcome == Judgement::Unknown);
        assert!(
            unknown.all(|setting| setting.shown.contains("ppl_average")),
            "{}: undecided for another reason",
            entry.claim.id
        );
    }
    let artifacts = absent.iter().flat_map(|entry| entry.claim.artifacts).map(|name| (*name).to_owned());
    format!(
        "- undecided: {} claims about average perplexity, because this profile has one of the paper's three texts.\n\
         - undecided: {} claims about {}, which this profile leaves out.\n",
        incomplete.len(),
        absent.len(),
        join_names(&distinct(artifacts))
    )
}

/// Formats one line that lists the methods ahead of ours, each with its setting. Returns an empty string if there are
/// none.
fn format_leaders(counts: &BestCounts) -> String {
    let leaders = counts.ahead.iter().map(|entry| {
        let name = if entry.recovery == recovery::NONE { "no repair" } else { recovery::label(&entry.recovery) };
        format!("{name} on {}", format_cut(&(entry.backbone.clone(), entry.depth, entry.layers)))
    });
    let leaders = leaders.collect::<Vec<_>>().join(", ");
    if leaders.is_empty() { leaders } else { format!("Ahead instead: {leaders}.\n") }
}

/// Formats the findings for the paper's tables 2 and 3.
fn format_findings(accuracy: &Numbers, perplexity: &Numbers, counts: &BestCounts) -> String {
    let cuts = accuracy.cuts();
    let repairs = accuracy.repairs();
    let ours = repairs.iter().find(|name| recovery::is_ours(name)).unwrap();
    let mut text = format!(
        "Settings where {} leads the {} repairs and no repair: {counts}.\n",
        recovery::label(ours),
        repairs.len()
    );
    text += &format_leaders(counts);
    text += &format_perplexity_order(perplexity);
    let other: Vec<String> = distinct(accuracy.methods().into_iter().map(|(criterion, _)| criterion))
        .into_iter()
        .filter(|name| name != CUT_CRITERION)
        .collect();
    let lower: Vec<String> = cuts
        .iter()
        .filter(|cut| {
            other
                .iter()
                .any(|name| accuracy.value(cut, (name, recovery::NONE)) > (accuracy.value(cut, (CUT_CRITERION, ours))))
        })
        .map(format_cut)
        .collect();
    let names: Vec<String> = other.iter().map(|name| criterion::label(name).to_owned()).collect();
    let _ = writeln!(
        text,
        "In the paper {} is also above {} everywhere, which cut other layers and repair nothing.\nHere one of them is above it {}.",
        recovery::label(ours),
        join_names(&names),
        if lower.is_empty() { "nowhere".to_owned() } else { format!("on {}", join_names(&lower)) }
    );
    text
}

/// Describes in how many settings the average perplexities are in the same order as in the paper, and lists the
/// exceptions.
fn format_perplexity_order(perplexity: &Numbers) -> String {
    let order = ["ghosted", "replaceme-ls", "linearpatch-rotate", recovery::NONE];
    let (kept, lost): (Vec<Cut>, Vec<Cut>) = perplexity.cuts().into_iter().partition(|cut| {
        order.windows(2).all(|pair| {
            perplexity.value(cut, (CUT_CRITERION, pair[0])) < perplexity.value(cut, (CUT_CRITERION, pair[1]))
        })
    });
    let mut text = format!(
        "Average perplexity (table 3) ranks {} in the paper's order in {} of {} settings",
        join_names(
            &order.map(|name| if name == recovery::NONE { "no repair" } else { recovery::label(name) }.to_owned())
        ),
        kept.len(),
        kept.len() + lost.len()
    );
    let lost: Vec<String> = lost.iter().map(format_cut).collect();
    let _ = writeln!(
        text,
        "{}.",
        if lost.is_empty() { String::new() } else { format!(".\nExceptions: {}", join_names(&lost)) }
    );
    text
}

/// Reads the recorded results of a table, if there are any.
fn read_recorded(root: &Path, artifact: &str, profile: &str) -> Option<StoredResults> {
    let folder = root.join("results").join(artifact).join(profile);
    folder.join(StoredResults::FILE).is_file().then(|| StoredResults::read(&folder).unwrap())
}

fn replace_section(page: &str, section: &str) -> String {
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    format!("{before}{BEGIN}{section}{END}{after}")
}

#[test]
fn pages_show_the_numbers_of_recorded_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    assert_eq!((readme.matches(BEGIN).count(), readme.matches(END).count()), (1, 1));
    let runs =
        [("table2", "tiny"), ("table3", "tiny"), ("seeds", "tiny"), ("table2", REAL_PROFILE), ("seeds", REAL_PROFILE)];
    let [second, third, seeds, real, real_seeds] = runs.map(|(artifact, profile)| {
        read_recorded(root, artifact, profile).unwrap_or_else(|| panic!("results/ has no recorded run of {artifact}"))
    });
    let cells = second.cells.len();
    assert!(readme.contains(&format!("{cells} cells")), "the README does not state {cells} cells for table 2");
    let (_, counts) = format_headline(&second, Some(&seeds)).unwrap();
    let accuracy = Numbers::new(second.records(), "acc_average");
    let perplexity = Numbers::new(third.records(), "ppl_average");
    let bundled = format_findings(&accuracy, &perplexity, &counts);
    let part = format!(
        "{}\nThe three bundled models have [this table](docs/paper.md#table-2-of-the-bundled-models) over nine tasks.\n{}\n",
        format_real_section(&judge_real_model(root), &real, &real_seeds),
        bundled.lines().next().unwrap()
    );
    let bundled = format!("{}\n{bundled}", format_table(&accuracy));
    let picture = fs::read_to_string(root.join("results/figure1/tiny/figure1.svg")).unwrap();
    let paper = fs::read_to_string(root.join("docs/paper.md")).unwrap();
    for (file, expected) in [
        ("README.md", replace_section(&readme, &part)),
        ("docs/paper.md", replace_section(&paper, &bundled)),
        ("docs/pictures/figure1.svg", picture),
    ] {
        let file = root.join(file);
        if std::env::var("GHOSTLAB_DOCS").is_ok_and(|value| value == "write") {
            fs::write(&file, expected).unwrap();
        } else {
            assert!(
                fs::read_to_string(&file).unwrap() == expected,
                "{} is stale: run `just docs` to regenerate it",
                file.display()
            );
        }
    }
}

/// Builds the records for one metric from (depth, criterion, recovery, value) tuples.
fn build_numbers(metric: &str, values: &[(usize, &str, &str, f64)]) -> Numbers {
    Numbers::new(
        values
            .iter()
            .map(|(depth, criterion, recovery, value)| {
                serde_json::from_value(serde_json::json!({
                    "backbone": "b", "layers": 16, "depth": depth, "criterion": criterion, "recovery": recovery,
                    "finetuned": false, "calibration": "c4", "metric": metric, "value": value, "error": null,
                }))
                .unwrap()
            })
            .collect(),
        metric,
    )
}

#[test]
fn report_page_shows_the_real_model_first() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("reports/index.html")).unwrap();
    assert!(section_start(&page, "smollm2/table2") < section_start(&page, "tiny/table2"));
}

fn section_start(page: &str, id: &str) -> usize {
    page.find(&format!("<section id=\"artifact-{id}\"")).unwrap()
}

#[test]
fn generated_section_marks_the_best_and_names_the_leader() {
    let accuracy = build_numbers(
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
    let rows = format_table(&accuracy);
    assert!(
        rows.starts_with(
            "| | b 4/16 | b 6/16 |\n| --- | ---: | ---: |\n| Dense | 80.00 | 80.00 |\n| SLEB | **70.00** | 44.00 |\n"
        ),
        "{rows}"
    );
    assert!(rows.contains("| + ReplaceMe (LS) | 60.00 | **45.00** |"), "{rows}");
    assert!(rows.lines().skip(3).map(|row| row.split('|').nth(1).unwrap().trim()).eq(names), "{rows}");
    let perplexity = build_numbers(
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
    let sentences = format_findings(&accuracy, &perplexity, &counts);
    let first = "Settings where Ghost Layer (Ours) leads the 2 repairs and no repair: 1 of 2 on seed 0, \
                 significantly in 0 of 2; over five seeds in 2 of 2.\nAhead instead: ReplaceMe (LS) on b 6/16.\n";
    assert!(sentences.starts_with(first), "{sentences}");
    assert!(sentences.contains("in the paper's order in 0 of 1 settings.\nExceptions: b 4/16.\n"), "{sentences}");
    assert!(
        sentences.contains("above SLEB everywhere") && sentences.ends_with("Here one of them is above it on b 4/16.\n"),
        "{sentences}"
    );
}
