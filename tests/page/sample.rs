//! Sample report page with every kind of table, figure and note.

use super::*;

/// Line in the paper's tables: `artifact,backbone,total_layers,pruned_layers,criterion,recovery,…,metric,value,std`.
struct Line {
    fields: Vec<String>,
}

impl Line {
    fn backbone(&self) -> &str {
        &self.fields[1]
    }
    fn depth(&self) -> &str {
        &self.fields[3]
    }
    fn criterion(&self) -> &str {
        &self.fields[4]
    }
    fn recovery(&self) -> &str {
        &self.fields[5]
    }
    fn metric(&self) -> &str {
        &self.fields[8]
    }
    fn value(&self) -> &str {
        &self.fields[9]
    }
    /// Returns the key of the row to which the line belongs. It does not include the metric.
    fn key(&self) -> String {
        format!("{}/{}/{}/{}/c4", self.backbone(), self.criterion(), self.depth(), self.recovery())
    }
}

fn read_lines(table: &str) -> Vec<Line> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/paper/{table}.csv"));
    let text = fs::read_to_string(path).unwrap();
    text.lines().skip(1).map(|line| Line { fields: line.split(',').map(str::to_owned).collect() }).collect()
}

/// Builds a table with one row per key and one column per metric. Marks the two best values for each backbone and
/// depth.
fn build_table(lines: &[Line], metrics: &[(&str, &str, &str)], grouped: bool) -> SavedTable {
    let mut columns = if grouped { vec![] } else { vec![text_column("Backbone")] };
    columns.push(SavedColumn { numeric: true, ..text_column("Depth") });
    columns.extend([text_column("Criterion"), text_column("Recovery")]);
    let leading = columns.len();
    columns.extend(metrics.iter().map(|(metric, name, group)| SavedColumn {
        group: (!group.is_empty()).then(|| (*group).to_owned()),
        numeric: true,
        higher_is_better: Some(!metric.starts_with("ppl")),
        choice: false,
        ..text_column(name)
    }));
    let mut keys: Vec<String> = Vec::new();
    for line in lines {
        if !keys.contains(&line.key()) {
            keys.push(line.key());
        }
    }
    let mut rows: Vec<SavedRow> = keys.iter().map(|key| build_row(lines, metrics, grouped, key)).collect();
    for (column, kind) in columns.iter().enumerate().skip(leading) {
        for index in 0..rows.len() {
            let Some(highlighted) =
                rows[index].cells[column].value.filter(|_| rows[index].cells[leading - 2].text != "Dense")
            else {
                continue;
            };
            let highlighted_row = &rows[index];
            let rivals = rows.iter().filter(|row| {
                row.group == highlighted_row.group && row.cells[..leading - 2] == highlighted_row.cells[..leading - 2]
            });
            let ahead =
                rivals
                    .filter_map(|row| row.cells[column].value)
                    .filter(|value| {
                        if kind.higher_is_better == Some(true) { *value > highlighted } else { *value < highlighted }
                    })
                    .count();
            (rows[index].cells[column].best, rows[index].cells[column].second) = (ahead == 0, ahead == 1);
        }
    }
    SavedTable {
        protocol:
            "Protocol: profile paper; accuracy on arc_easy, arc_challenge, hellaswag, winogrande, boolq, openbookqa, \
                   rte, copa, race: all documents; calibration: 128 sequences of 2048 tokens of c4, operators from the \
                   first 32."
                .into(),
        notes: vec!["Something else ran on the machine: time again before these numbers are compared.".into()],
        group_name: "Backbone".into(),
        columns,
        rows,
        ..SavedTable::default()
    }
}

fn text_column(name: &str) -> SavedColumn {
    SavedColumn { name: name.into(), choice: true, ..SavedColumn::default() }
}

fn build_row(lines: &[Line], metrics: &[(&str, &str, &str)], grouped: bool, key: &str) -> SavedRow {
    let row_lines: Vec<&Line> = lines.iter().filter(|line| line.key() == key).collect();
    let first = row_lines[0];
    let mut cells = if grouped { vec![] } else { vec![text_cell(first.backbone())] };
    cells.push(SavedCell { value: first.depth().parse().ok(), ..text_cell(first.depth()) });
    cells.extend([text_cell(criterion::label(first.criterion())), text_cell(recovery::label(first.recovery()))]);
    cells.extend(metrics.iter().enumerate().map(|(index, (metric, _, _))| {
        let value = row_lines.iter().find(|line| line.metric() == *metric).map_or("—", |line| line.value());
        // Mark a few cells as failed so that the page shows this state too.
        let failed = first.recovery() == "replaceme-cos" && first.depth() == "11" && index < 2;
        SavedCell {
            text: if failed { "failed".into() } else { value.into() },
            value: value.parse().ok().filter(|_| !failed),
            mark: (first.recovery() == "ghosted" && index % 3 == 0).then(|| SavedSignificance {
                better: index > 0,
                says: "better than ReplaceMe (LS) (p = 1.00e-3, mcnemar)".into(),
            }),
            comparison: grouped.then(|| paper_value(value, index, failed)),
            key: Some(key.to_owned()),
            error: "0.93".into(),
            items: Some(2376),
            failed,
            ..SavedCell::default()
        }
    }));
    SavedRow {
        group: grouped.then(|| first.backbone().to_owned()),
        ours: recovery::is_ours(first.recovery()),
        cells,
        ..SavedRow::default()
    }
}

fn text_cell(text: &str) -> SavedCell {
    SavedCell { text: text.to_owned(), ..SavedCell::default() }
}

/// Builds a table with six times and six speedups per row. The deviations are as wide as real ones.
fn build_times_table() -> SavedTable {
    let numbers = ["Prefill (ms)", "Speedup (×)"].into_iter().flat_map(|group| {
        ["128×1", "128×4", "256×1", "256×4", "512×1", "512×4"].map(|name| SavedColumn {
            group: Some(group.to_owned()),
            numeric: true,
            higher_is_better: Some(group.starts_with('S')),
            choice: false,
            ..text_column(name)
        })
    });
    SavedTable {
        group_name: "Model".into(),
        columns: [text_column("Lp/Lt"), text_column("Method")].into_iter().chain(numbers).collect(),
        rows: ["Dense", "LLM-Streamline", "Linear Patch (Rotate)", "Ghost Layer (Ours)"]
            .map(|method| SavedRow {
                group: Some("llama-3.1-8b".into()),
                cells: [text_cell("7/32"), text_cell(method)]
                    .into_iter()
                    .chain((0..12).map(|at| text_cell(if at < 6 { "1419.5 ± 102.1" } else { "1.30 ± 0.19" })))
                    .collect(),
                ..SavedRow::default()
            })
            .into(),
        ..SavedTable::default()
    }
}

/// Builds a comparison with the paper's value. Cycles through all verdicts and through differences of various lengths.
fn paper_value(paper: &str, position: usize, failed: bool) -> SavedComparison {
    let verdict = match position % 3 {
        _ if failed => PaperVerdict::Missing,
        0 => PaperVerdict::Same,
        1 => PaperVerdict::Differs,
        _ => PaperVerdict::OtherProtocol(vec!["100 of 2376 documents".into()]),
    };
    let difference = (!failed).then(|| ["±0.00", "−12.34", "+3.21"][position % 3].to_owned());
    SavedComparison { paper: paper.into(), difference, tolerance: Some("1.00".into()), verdict }
}

const SVG: &str =
    "<svg xmlns='http://www.w3.org/2000/svg' width='237.6pt' height='81.675pt' viewBox='0 0 640 220'><style>
    .frame{fill:#eef2f6}.line{stroke:#0b55b5;fill:none;stroke-width:3}text{fill:#1b1f24;font:16px sans-serif}
    @media (prefers-color-scheme: dark){.frame{fill:#1f2429}.line{stroke:#82bbff}text{fill:#e6e9ec}}</style>
    <rect class='frame' id='main' width='640' height='220'/><path class='line' d='M40 180 L200 90 L400 120 L600 30'/>
    <text x='40' y='30'>boundary error by layer</text></svg>";

/// Columns of Table 2: key, title and group.
const TASK_COLUMNS: [(&str, &str, &str); 10] = [
    ("arc_easy", "ARC-e", "Accuracy (%)"),
    ("arc_challenge", "ARC-c", "Accuracy (%)"),
    ("hellaswag", "HellaSwag", "Accuracy (%)"),
    ("winogrande", "WinoGrande", "Accuracy (%)"),
    ("boolq", "BoolQ", "Accuracy (%)"),
    ("openbookqa", "OBQA", "Accuracy (%)"),
    ("rte", "RTE", "Accuracy (%)"),
    ("copa", "COPA", "Accuracy (%)"),
    ("race", "RACE", "Accuracy (%)"),
    ("average", "Average", ""),
];
/// Columns of Table 3: key, title and group.
const TEXT_COLUMNS: [(&str, &str, &str); 5] = [
    ("ppl_wikitext2", "WikiText-2", "Perplexity"),
    ("ppl_c4", "C4", "Perplexity"),
    ("ppl_ptb", "PTB", "Perplexity"),
    ("ppl_average", "Average", "Perplexity"),
    ("acc_average", "Accuracy", ""),
];

pub(super) fn build_sample() -> Page {
    let second = read_lines("table2");
    let third = read_lines("table3");
    let cells: BTreeMap<String, CellNote> =
        second.iter().chain(&third).map(|line| (line.key(), build_note(line))).collect();
    let plain = SVG.split("@media").next().unwrap().to_owned()
        + "</style><rect class='frame' width='640' height='220'/>\
        <text x='40' y='30'>drawn for paper only</text></svg>";
    Page {
        title: "Ghosted Layers, made again".into(),
        made: "2026-11-21 14:50 UTC".into(),
        program: "ghostlab 0.1.0, commit bb2179c".into(),
        answer: vec!["An answer in one sentence.".into()],
        headline: "table2".into(),
        profile_note:
            "The tiny backbones have 16 layers and were trained here; their numbers are compared by sign and \
                       rank, not by size."
                .into(),
        artifacts: vec![
            build_artifact(
                "table2",
                "paper",
                "Table 2: zero-shot accuracy",
                vec![build_table(&second, &TASK_COLUMNS, true)],
                vec![],
            ),
            build_artifact(
                "table3",
                "paper",
                "Table 3: perplexity",
                vec![build_table(&third, &TEXT_COLUMNS, false)],
                vec![],
            ),
            build_artifact("tableA8", "paper", "Table A8: prefill latency", vec![build_times_table()], vec![]),
            build_artifact(
                "figure2",
                "tiny",
                "Figure 2: the boundary's error",
                vec![],
                vec![
                    FigureView { svg: SVG.into(), label: "LLaMA-3-8B".into() },
                    FigureView { svg: plain, label: "One that knows no dark scheme".into() },
                ],
            ),
        ],
        claims: vec![
            claim_row("Ghosted Layers has the highest average of all training-free recoveries.", "table2"),
            claim_row("The repaired backbone has a lower perplexity than the pruned one at every depth.", "table3"),
        ],
        findings: vec![build_finding()],
        left_out: vec![("results/table2/tiny+cpu-bf16-1a2b3c4d".into(), "with cpu-bf16".into())],
        cells,
    }
}

fn build_finding() -> Finding {
    Finding {
        severity: Severity::Contradiction,
        check: Check::Average,
        artifact: "Table 3".into(),
        row: "llama-3-8b, 7 layers, Shortened LLaMA".into(),
        column: "acc_average".into(),
        expected: "49.34 (Table 2)".into(),
        found: "49.39".into(),
        note: String::new(),
        places: "table3.csv:2".into(),
    }
}

fn build_artifact(
    name: &str,
    profile: &str,
    title: &str,
    tables: Vec<SavedTable>,
    figures: Vec<FigureView>,
) -> PageArtifact {
    PageArtifact {
        name: name.into(),
        profile: profile.into(),
        title: title.into(),
        caption: "Read from the paper's tables, to see how the page looks with numbers of their size.".into(),
        status: "complete".into(),
        tables,
        figures,
        provenance: vec![
            ("commit".into(), "bb2179c0ffee0000000000000000000000000000".into()),
            ("command".into(), "ghostlab run experiments/table2.yaml --set depth=7,11".into()),
        ],
        computed: Vec::new(),
        inputs: [("../models/llama-3-8b/model-00001-of-00004.safetensors".to_owned(), "8d4782b4a78a9acd".repeat(4))]
            .into(),
        files: vec![("CSV".into(), format!("{profile}/{name}.csv")), ("LaTeX".into(), format!("{profile}/{name}.tex"))],
    }
}

fn claim_row(claim: &str, artifact: &str) -> ClaimRow {
    ClaimRow {
        sentence: claim.into(),
        claim: claim.into(),
        section: "§5.1, Table 2".into(),
        // Longest text that can occur in this field.
        paper: "54 of 60 settings, all needed".into(),
        paper_verdict: Judgement::Holds,
        ours: "21 of 24 settings, 3 unknown without a rival method".into(),
        verdict: if artifact == "table2" { Judgement::Fails } else { Judgement::Holds },
        artifact: artifact.into(),
        profile: String::new(),
    }
}

fn build_note(line: &Line) -> CellNote {
    CellNote {
        title: format!(
            "{} without {} layers: {}, {}",
            line.backbone(),
            line.depth(),
            criterion::label(line.criterion()),
            recovery::label(line.recovery())
        ),
        lines: vec![
            ("Layers removed".into(), "22 to 28 of 32".into()),
            ("Calibration".into(), "c4, 128 sequences of 2048 tokens, seed 0".into()),
        ],
        commands: vec![format!("ghostlab explain experiments/table2.yaml {}", line.key())],
        makers: vec![vec![
            ("program".into(), "ghostlab 0.1.0".into()),
            ("commit".into(), "bb2179c0ffee0000000000000000000000000000".into()),
            ("command".into(), "ghostlab reproduce table2 --profile paper".into()),
            ("machine".into(), "a processor, 32 threads, avx2, linux, x86_64".into()),
        ]],
        parts: vec![
            build_object_note("selection", "3b5d5c3712955042", 12.1),
            build_object_note("operator", "9f86d081884c7d65", 41.7),
        ],
        inputs: [("../models/llama-3-8b/config.json".to_owned(), "8d4782b4a78a9acd".repeat(4))].into(),
        ..CellNote::default()
    }
}

fn build_object_note(kind: &str, key: &str, seconds: f64) -> ObjectNote {
    let finished = "2026-11-20T10:03:00Z".to_owned();
    ObjectNote { kind: kind.into(), key: key.repeat(4), finished, seconds, maker: 0 }
}
