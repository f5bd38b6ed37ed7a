//! Renders a small table in every format.

use std::sync::Arc;

use super::layout::{lay_out_table, with_notes};
use super::paper_columns::keep_paper_columns;
use crate::grid::{Description, TableEntry};
use crate::metric::Metric;
use crate::results::number_record::{Condition, DENSE, Record};
use crate::results::{
    PaperVerdict, ResultRow, Sample, Table, TableRow, latex, latex_notes, markdown, screen, settings, tidy_frame,
};

fn describe_table(across: bool, rows: &serde_json::Value, metrics: &[&str]) -> Description {
    let lead = if across { vec!["backbone", "method"] } else { vec!["backbone", "depth", "method"] };
    serde_json::from_value(serde_json::json!({
        "title": "Accuracy & perplexity",
        "caption": "A caption.",
        "table": {"lead": lead, "dense": true, "rows": rows, "across_depths": across, "metrics": metrics}
    }))
    .unwrap()
}

fn entry(description: &Description) -> &TableEntry {
    description.table.as_ref().unwrap()
}

fn condition(depth: usize, criterion: &str, recovery: &str) -> Condition {
    Condition {
        backbone: "llama-3-8b".into(),
        layers: 32,
        depth,
        unit: crate::criterion::DepthUnit::Layers,
        criterion: criterion.into(),
        recovery: recovery.into(),
        finetuned: false,
        calibration: "c4".into(),
    }
}

fn number(depth: usize, criterion: &str, recovery: &str, metric: &str, value: f64, sample: Sample) -> ResultRow {
    let record = Record {
        condition: condition(depth, criterion, recovery),
        metric: metric.into(),
        value: Some(value),
        error: None,
    };
    ResultRow { sample, ..ResultRow::new(record, "the cell") }
}

/// Returns the results for `count` documents, of which the first `right` are answered correctly.
fn answers(right: usize, count: usize) -> Sample {
    Sample::of_task((0..count).map(|at| at < right).collect())
}

fn numbers() -> Vec<ResultRow> {
    let mut numbers = vec![
        number(0, DENSE, "none", "rte", 70.0, answers(70, 100)),
        number(7, "llm-streamline", "none", "rte", 40.0, answers(40, 100)),
        number(7, "llm-streamline", "linearpatch-diag", "rte", 50.0, answers(50, 100)),
        number(7, "llm-streamline", "ghosted", "rte", 62.5, answers(62, 100)),
        number(0, DENSE, "none", "ppl_c4", 6.712_345, Sample::None),
        number(7, "llm-streamline", "none", "ppl_c4", 2.5e7, Sample::None),
        number(7, "llm-streamline", "linearpatch-diag", "ppl_c4", 180.0, Sample::None),
        number(7, "llm-streamline", "ghosted", "ppl_c4", 21.625, Sample::None),
    ];
    numbers[6].record.value = None;
    numbers[6].failure = Some("a tensor is not finite".into());
    numbers
}

fn rows() -> serde_json::Value {
    serde_json::json!([{"criterion": ["llm-streamline"], "recovery": ["none", "linearpatch-diag", "ghosted"]}])
}

fn lay_out(description: &Description, numbers: Vec<ResultRow>, paper: &[Record]) -> crate::error::Result<Table> {
    let numbers: Vec<Arc<ResultRow>> = numbers.into_iter().map(Arc::new).collect();
    lay_out_table(description, entry(description), &numbers, paper)
}

fn sample_table() -> Table {
    lay_out(&describe_table(false, &rows(), &["rte", "ppl_c4"]), numbers(), &[]).unwrap()
}

#[test]
fn screen_shows_ranks_failures_and_significance() {
    let text = screen(&sample_table(), None);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Accuracy & perplexity");
    assert_eq!(single_spaced(lines[2]), "Model Lp/Lt Method RTE C4");
    let body: Vec<String> =
        lines[4..].iter().filter(|line| line.starts_with("LLaMA")).map(|line| single_spaced(line)).collect();
    assert_eq!(
        body,
        [
            "LLaMA-3-8B 0/32 Dense 70.00 6.71",
            "LLaMA-3-8B 7/32 LLM-Streamline 40.00 2.50e7",
            "LLaMA-3-8B 7/32 Linear Patch (Diag) 50.00° failed",
            // `ghosted` answers 12 documents correctly that `linearpatch-diag` answers wrongly, and none the other way
            // round. McNemar's exact test therefore gives p = 2 · ½¹².
            "LLaMA-3-8B 7/32 Ghost Layer (Ours) 62.50*+ 21.62*",
        ]
    );
    assert!(text.contains("p < 0.05"), "{text}");
    assert!(lines[5].starts_with('┄'), "a rule between dense and pruned:\n{text}");
}

fn single_spaced(line: &str) -> String {
    line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
}

#[test]
fn markdown_table_has_marks_legend_and_caption() {
    let text = markdown(&sample_table());
    let expected = "\
**Accuracy & perplexity**

| Model | Lp/Lt | Method | RTE | C4 |
| --- | --- | --- | ---: | ---: |
| LLaMA-3-8B | 0/32 | Dense | 70.00 | 6.71 |
| LLaMA-3-8B | 7/32 | LLM-Streamline | 40.00 | 2.50e7 |
| LLaMA-3-8B | 7/32 | Linear Patch (Diag) | <u>50.00</u> | failed |
| *LLaMA-3-8B* | *7/32* | *Ghost Layer (Ours)* | **62.50**⁺ | **21.62** |

Bold: best of a block; underlined: second; in italics: ours. ⁺ and ⁻: ours is better or worse than the best other row of the same selection, including plain removal (paired test on the same items, p < 0.05, not corrected for choosing that row).

A caption.
";
    assert_eq!(text, expected);
}

#[test]
fn latex_is_a_complete_table_with_packages() {
    let description = describe_table(false, &rows(), &["rte", "ppl_c4"]);
    let text = latex(&keep_paper_columns(entry(&description), &sample_table()), "table2");
    let expected = "\
% \\usepackage{adjustbox,booktabs,graphicx,multirow,url} \\usepackage[table]{xcolor}
\\begin{table}[t]
\\centering
\\footnotesize
\\setlength{\\emergencystretch}{4em}
\\caption[Accuracy \\& perplexity]{Accuracy \\& perplexity. A caption. $L_p/L_t$: layers removed, of the backbone's layers. \
Bold: best of a block, underlined: second; shaded: ours. $^{+}$ and $^{-}$: ours is better or worse than the best other row of \
the same selection, including plain removal (paired test on the same items, p \\textless{} 0.05, not corrected for \
choosing that row).}
\\label{tab:table2}
\\smallskip
\\begin{adjustbox}{max totalsize={\\linewidth}{.75\\textheight}}
\\begin{tabular}{lllrr}
\\toprule
\\textbf{Model} & \\textbf{$L_p/L_t$} & \\textbf{Method} & \\textbf{RTE} $\\uparrow$ & \\textbf{C4} $\\downarrow$ \\\\
\\midrule
 & 0/32 & Dense & 70.00 & 6.71 \\\\
\\cmidrule{2-5}
 & 7/32 & LLM-Streamline & 40.00 & 2.50e7 \\\\
 & 7/32 & Linear Patch (Diag) & \\underline{50.00} & failed \\\\
\\rowcolor{gray!15} \\cellcolor{white}\\multirow{-4}{*}{LLaMA-3-8B} & 7/32 & Ghost Layer (Ours) & \\textbf{62.50}$^{+}$ & \
\\textbf{21.62} \\\\
\\bottomrule
\\end{tabular}
\\end{adjustbox}
\\end{table}
";
    assert_eq!(text, expected);
}

#[test]
fn frame_has_a_row_for_each_number_with_its_test_and_status() {
    let frame = tidy_frame("table2", "tiny", &sample_table()).unwrap();
    assert_eq!(frame.height(), 8);
    let ours = row_of(&frame, "rte", "ghosted");
    assert!(
        text_at(&frame, "against", ours).contains("linearpatch-diag")
            && text_at(&frame, "test", ours).contains("mcnemar")
    );
    // McNemar's exact test on 12 discordant documents, all in favor of `ghosted`, gives p = 2 · ½¹².
    let p = frame.column("p").unwrap().get(ours).unwrap().try_extract::<f64>().unwrap();
    assert!((p - 2.0f64.powi(-11)).abs() < 1e-15, "{p}");
    let failed = row_of(&frame, "ppl_c4", "linearpatch-diag");
    assert!(text_at(&frame, "status", failed).contains("failed: a tensor is not finite"));
    assert_eq!(text_at(&frame, "value", failed), "null");
    assert!(text_at(&frame, "cell", ours).contains("the cell"));
}

fn text_at(frame: &polars::prelude::DataFrame, column: &str, row: usize) -> String {
    frame.column(column).unwrap().get(row).unwrap().to_string()
}

fn row_of(frame: &polars::prelude::DataFrame, metric: &str, recovery: &str) -> usize {
    let mut rows = (0..8).filter(|row| text_at(frame, "metric", *row).contains(metric));
    rows.find(|row| text_at(frame, "recovery", *row).contains(recovery)).unwrap()
}

#[test]
fn columns_can_be_repeated_for_each_depth() {
    let description = describe_table(true, &rows(), &["rte"]);
    let mut numbers = numbers();
    numbers.retain(|number| number.record.metric == "rte");
    numbers.push(number(11, "llm-streamline", "ghosted", "rte", 55.0, Sample::None));
    let view = lay_out(&description, numbers, &[]).unwrap();
    assert_eq!(view.groups, [("7-layer".to_owned(), 1), ("11-layer".to_owned(), 1)]);
    let rows: Vec<String> = view.rows.iter().map(texts).collect();
    assert_eq!(rows, ["70.00 70.00", "40.00 —", "50.00 —", "62.50 55.00"]);
    assert_eq!(view.rows[3].lead[1], "+ Ghost Layer (Ours)");
    assert!(markdown(&view).contains("RTE (11-layer)"));
    assert!(latex(&view, "t").contains("\\multicolumn{1}{c}{\\textbf{7-layer}}"));
}

fn texts(row: &TableRow) -> String {
    row.cells
        .iter()
        .map(|shown| shown.as_ref().map_or("—".to_owned(), |shown| shown.text.clone()))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn missing_cell_does_not_shift_other_depths() {
    let description = describe_table(true, &rows(), &["rte"]);
    let mut numbers = numbers();
    numbers.retain(|number| number.record.metric == "rte" && number.record.condition.recovery != "ghosted");
    numbers.push(number(11, "llm-streamline", "linearpatch-diag", "rte", 30.0, Sample::None));
    // The method has a value only at the second depth, where it is the best.
    numbers.push(number(11, "llm-streamline", "ghosted", "rte", 55.0, Sample::None));
    let view = lay_out(&description, numbers, &[]).unwrap();
    let rows: Vec<String> = view.rows.iter().map(texts).collect();
    assert_eq!(rows, ["70.00 70.00", "40.00 —", "50.00 30.00", "— 55.00"]);
    let best: Vec<Vec<bool>> = view
        .rows
        .iter()
        .map(|row| row.cells.iter().map(|cell| cell.as_ref().is_some_and(|shown| shown.best)).collect())
        .collect();
    assert_eq!(best[2..], [[true, false], [false, true]]);
}

#[test]
fn depth_shared_by_backbones_has_one_column() {
    let description = describe_table(true, &rows(), &["rte"]);
    let shared = vec![rte_of("a", 4, 1.0), rte_of("a", 6, 2.0), rte_of("b", 6, 3.0)];
    let view = lay_out(&description, shared, &[]).unwrap();
    assert_eq!(view.groups, [("4-layer".to_owned(), 1), ("6-layer".to_owned(), 1)]);
    assert_eq!(view.rows.iter().map(texts).collect::<Vec<_>>(), ["1.00 2.00", "— 3.00"]);
    // The backbones have different sizes, as in the paper's table A6.
    let unlike = vec![rte_of("a", 7, 1.0), rte_of("a", 11, 2.0), rte_of("b", 13, 3.0), rte_of("b", 15, 4.0)];
    let view = lay_out(&description, unlike, &[]).unwrap();
    assert_eq!(view.groups, [("7-layer, 13-layer".to_owned(), 1), ("11-layer, 15-layer".to_owned(), 1)]);
    assert_eq!(view.rows.iter().map(texts).collect::<Vec<_>>(), ["1.00 2.00", "3.00 4.00"]);
}

fn rte_of(backbone: &str, depth: usize, value: f64) -> ResultRow {
    let mut number = number(depth, "llm-streamline", "ghosted", "rte", value, Sample::None);
    number.record.condition.backbone = backbone.into();
    number
}

#[test]
fn rows_that_differ_in_one_setting_name_it() {
    let description = describe_table(false, &rows(), &["rte"]);
    let mut all: Vec<ResultRow> = numbers().into_iter().filter(|number| number.metric.id == "rte").collect();
    for (seed, value) in [(0, 62.5), (1, 60.0)] {
        let mut number = number(7, "llm-streamline", "ghosted", "rte", value, Sample::None);
        number.setup.variant = Arc::new([(settings::SEED.to_owned(), seed.into()), ("x".to_owned(), 1.into())].into());
        all.push(number);
    }
    all.remove(3);
    let view = lay_out(&description, all, &[]).unwrap();
    let called: Vec<&str> = view.rows.iter().map(|row| row.lead[2].as_str()).collect();
    assert_eq!(called[3..], ["Ghost Layer (Ours), seed 0", "Ghost Layer (Ours), seed 1"]);
    assert_eq!(view.rows.iter().map(texts).collect::<Vec<_>>()[3..], ["62.50", "60.00"]);
    assert!(markdown(&view).contains("seed 1") && latex(&view, "t").contains("seed 1"));
}

#[test]
fn indistinguishable_numbers_of_a_cell_are_rejected() {
    let description = describe_table(false, &rows(), &["rte"]);
    let mut numbers = numbers();
    numbers.push(number(7, "llm-streamline", "ghosted", "rte", 1.0, Sample::None));
    let error = lay_out(&description, numbers, &[]).unwrap_err().to_string();
    assert!(error.contains("named_options"), "{error}");
}

#[test]
fn paper_value_and_verdict_are_attached_to_cells() {
    let description = describe_table(false, &rows(), &["rte", "ppl_c4"]);
    let mut paper: Vec<Record> = numbers().into_iter().map(|number| number.record).collect();
    paper[3].value = Some(66.43);
    let view = lay_out(&description, numbers(), &paper).unwrap();
    let [first, last] = [0, 3].map(|row| view.rows[row].cells[0].as_ref().unwrap().comparison.clone().unwrap());
    assert_eq!((first.verdict, last.verdict, last.paper), (PaperVerdict::Same, PaperVerdict::Differs, 66.43));
}

#[test]
fn equal_printed_values_tie_and_failed_cell_is_never_best() {
    let description = describe_table(false, &rows(), &["rte"]);
    let mut numbers = numbers();
    numbers.retain(|number| number.record.metric == "rte");
    // Simulate an accuracy that differs only because it was summed in another order, and a failed cell.
    (numbers[1].record.value, numbers[2].record.value) = (Some(73.333_333_333_333_33), Some(73.333_333_333_333_3));
    numbers[3].record.value = Some(99.0);
    numbers[3].failure = Some("not scored on c4".into());
    numbers.push(number(7, "llm-streamline", "replaceme-ls", "rte", 50.0, Sample::None));
    let rows = serde_json::json!([{"criterion": ["llm-streamline"], "recovery": ["none", "linearpatch-diag", "ghosted", "replaceme-ls"]}]);
    let description = Description { table: describe_table(false, &rows, &["rte"]).table, ..description };
    let view = lay_out(&description, numbers, &[]).unwrap();
    let marks: Vec<(&str, bool, bool)> =
        view.numbers().map(|(_, shown)| (shown.text.as_str(), shown.best, shown.second)).collect();
    assert_eq!(
        marks[1..],
        [("73.33", true, false), ("73.33", true, false), ("failed", false, false), ("50.00", false, false)]
    );
}

#[test]
fn user_defined_task_ranks_the_highest_accuracy_first() {
    for name in ["race_v2", "my-questions"] {
        let description = describe_table(false, &rows(), &[name]);
        let mut numbers = numbers();
        numbers.retain(|number| number.record.metric == "rte");
        for number in &mut numbers {
            number.record.metric = name.into();
            number.metric = Metric::task(name);
        }
        let view = lay_out(&description, numbers, &[]).unwrap();
        let best: Vec<&str> =
            view.numbers().filter(|(_, shown)| shown.best).map(|(_, shown)| shown.text.as_str()).collect();
        assert_eq!(best, ["62.50"], "{name}");
    }
}

#[test]
fn unmeasured_metric_has_no_column() {
    for (metrics, expected) in [
        (&["rte", "squad/f1,none", "copa", "ppl_ptb", "acc_average", "prefill_ms"][..], &["RTE"][..]),
        (&["copa"], &["CoPa"]),
    ] {
        let heads = lay_out(&describe_table(false, &rows(), metrics), numbers(), &[]).unwrap().columns;
        let heads: Vec<&str> = heads.iter().map(|column| column.head.as_str()).collect();
        assert_eq!(heads, expected, "{metrics:?}");
    }
}

#[test]
fn unknown_metric_is_rejected_with_a_suggestion() {
    let description = describe_table(false, &rows(), &["acc_avarage"]);
    let error = lay_out(&description, numbers(), &[]).unwrap_err().to_string();
    assert!(error.contains("did you mean `acc_average`?"), "{error}");
}

#[test]
fn protocol_and_warnings_are_below_the_table() {
    let view = with_notes(sample_table(), "tiny", vec!["Warning: 5 % is seen.".into()]);
    // Commands print warnings to standard error instead.
    assert!(screen(&view, None).ends_with("Protocol: profile tiny.\n"), "{}", screen(&view, None));
    assert!(markdown(&view).contains("\n\nProtocol: profile tiny.\n\nWarning: 5 % is seen.\n\nA caption."));
    assert_eq!(
        latex_notes(&view, "t").unwrap(),
        "\\begin{flushleft}\n\\footnotesize\n\\textbf{Table~\\ref{tab:t}.} Protocol: profile tiny.\n\nWarning: 5 \\% is \
         seen.\n\\end{flushleft}\n"
    );
    let float = latex(&view, "t");
    assert!(!float.contains("Warning") && float.contains("% Protocol and notes: "), "{float}");
    assert_eq!(latex_notes(&self::sample_table(), "t"), None);
}

#[test]
fn markdown_and_latex_show_paper_value_and_verdict() {
    let description = describe_table(false, &rows(), &["rte", "ppl_c4"]);
    let mut paper: Vec<Record> = numbers().into_iter().map(|number| number.record).collect();
    paper[0].value = Some(70.0);
    paper[3].value = Some(66.43);
    paper[6].value = Some(180.0);
    let view = lay_out(&description, numbers(), &paper).unwrap();
    let text = markdown(&view);
    for cell in [
        "| 70.00<br><sub>70.00; ±0.00 =</sub> |",
        "**62.50**⁺<br><sub>66.43; −3.93 ≠</sub>",
        "failed<br><sub>180.00</sub>",
    ] {
        assert!(text.contains(cell), "{cell}: {text}");
    }
    assert!(
        text.contains("Small: the paper's value, our difference from it, and a sign: = same, ≠ differs."),
        "{text}"
    );
    let text = latex(&view, "table2");
    let ours = "\\shortstack[r]{\\textbf{62.50}$^{+}$\\\\{\\tiny 66.43}\\\\{\\tiny $-$3.93 $\\neq$}}";
    assert!(text.contains(ours) && text.contains("{\\tiny $\\pm$0.00 =}"), "{text}");
    assert!(text.contains("and a sign: = same, $\\neq$ differs."), "{text}");
    assert!(text.is_ascii(), "LaTeX needs packages for other characters");
    let mut view = view;
    view.rows[3].cells[0].as_mut().unwrap().comparison.as_mut().unwrap().verdict =
        PaperVerdict::OtherProtocol(vec!["100 documents, not 277".into()]);
    let text = markdown(&view);
    assert!(text.contains("<sub>66.43; −3.93 ~</sub>") && text.contains("= same, ~ other protocol."), "{text}");
    assert!(latex(&view, "t").contains("$\\sim$ other protocol"), "{}", latex(&view, "t"));
    assert!(!markdown(&self::sample_table()).contains("paper") && !latex(&self::sample_table(), "t").contains("paper"));
}

#[test]
fn significance_can_be_computed_against_a_named_method() {
    let mut description = describe_table(false, &rows(), &["rte"]);
    let entry = description.table.as_mut().unwrap();
    entry.against = Some("ghosted".into());
    entry.named_options = vec!["rank".into()];
    entry.rows[0].recovery.push("rank:8".into());
    let mut numbers: Vec<ResultRow> = numbers().into_iter().filter(|number| number.metric.id == "rte").collect();
    // This method answers three documents correctly that `ghosted` answers wrongly, which is not significant.
    numbers.push(number(7, "llm-streamline", "rank:8", "rte", 65.0, answers(65, 100)));
    let table = lay_out(&description, numbers, &[]).unwrap();
    let marks: Vec<&str> = table.numbers().map(|(_, shown)| shown.mark()).collect();
    assert_eq!(marks, ["", "-", "-", "", ""], "the dense row and ghosted itself have no mark");
    let against = table.numbers().filter_map(|(_, shown)| Some(shown.paired.as_ref()?.against.as_str()));
    assert_eq!(against.collect::<Vec<_>>(), ["ghosted"; 3]);
    let text = markdown(&table);
    assert!(
        text.contains("⁺ and ⁻: better or worse than Ghost Layer (Ours) on the same selection (paired test on the same items, p < 0.05)."),
        "{text}"
    );
    assert!(text.contains("| Ghost Layer, low rank (8) | **65.00** |"), "{text}");
}
