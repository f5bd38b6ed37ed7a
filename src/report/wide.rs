//! The table of a run turned round: a row for each method, a column for each backbone and depth, one metric.

use super::render::{self, Shown};
use super::{Protocol, Row};
use crate::error::{Error, Result, nearest};
use crate::paper::backbone_label;
use crate::{criterion, recovery};

/// One metric of a run.
#[derive(Debug)]
pub struct Wide {
    metric: String,
    columns: Vec<Shown>,
    /// Row and column of the best pruned value of each column.
    best: Vec<(usize, usize)>,
    /// Lines below the table.
    notes: Vec<String>,
}

impl Wide {
    pub const FILE: &str = "wide.md";

    /// `metric` is the name of a column of the long table; without one, the average of the tasks, or else the first.
    ///
    /// # Errors
    /// A metric that the table does not have, or none at all.
    pub fn new(protocols: &[Protocol], rows: &[Row], metric: Option<&str>) -> Result<Self> {
        let known: Vec<String> = protocols.iter().map(Protocol::column).collect();
        let average = protocols.iter().position(|protocol| matches!(protocol, Protocol::Average { .. }));
        let place = match metric {
            Some(metric) => known.iter().position(|name| name == metric),
            None => average.or((!known.is_empty()).then_some(0)),
        };
        let Some(place) = place else {
            let asked = metric.unwrap_or_default();
            let error = Error::bad_input("the run has no such metric").at("--metric");
            let error = error.expected(format!("one of {}", known.join(", "))).found(format!("`{asked}`"));
            return Err(match nearest(asked, known.iter().map(String::as_str)) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            });
        };
        let several = |values: Vec<&String>| values.windows(2).any(|pair| pair[0] != pair[1]);
        let calibrated = rows.iter().filter(|row| row.depth > 0).map(|row| &row.calibration).collect();
        let methods = Methods { calibration: several(calibrated) };
        let (mut labels, mut settings) = (Vec::new(), Vec::new());
        for row in rows {
            // A column's dense value stands in each column of its backbone.
            push(&mut labels, methods.of(row));
            if row.depth > 0 {
                push(&mut settings, (row.backbone.clone(), row.depth, row.layers));
            }
        }
        // A backbone that is not pruned has a column of its own.
        for row in rows {
            if settings.iter().all(|(backbone, ..)| *backbone != row.backbone) {
                settings.push((row.backbone.clone(), row.depth, row.layers));
            }
        }
        let find = |label: &(bool, String, String), (backbone, depth, _): &(String, usize, usize)| {
            let own = |row: &&Row| row.backbone == *backbone && (row.depth == *depth || row.depth == 0);
            rows.iter().filter(own).find(|row| methods.of(row) == *label)
        };
        let decimals = render::decimals_of(&known[place], rows.iter().filter_map(|row| Some(row.values[place]?.value)));
        let shown = |row: &Row| row.values[place].map(|of| render::float(of.value, decimals));
        let mut columns = vec![Shown {
            name: String::new(),
            cells: labels.iter().map(|(_, _, text)| text.clone()).collect(),
            is_number: false,
        }];
        let mut best = Vec::new();
        for setting in &settings {
            let found: Vec<Option<&Row>> = labels.iter().map(|label| find(label, setting)).collect();
            // What prints alike ranks alike, and what failed is never best.
            let cost = |row: &Row| {
                let value =
                    shown(row)?.parse::<f64>().ok().filter(|value| value.is_finite() && row.status == Row::OK)?;
                protocols[place].measures().cost(value)
            };
            let costs: Vec<Option<f64>> =
                found.iter().map(|row| row.filter(|row| row.depth > 0).and_then(cost)).collect();
            let top = costs.iter().copied().flatten().min_by(f64::total_cmp);
            let is_best = |(_, cost): &(usize, &Option<f64>)| top.is_some() && **cost == top;
            best.extend(costs.iter().enumerate().filter(is_best).map(|(row, _)| (row, columns.len())));
            let cells = found.iter().map(|row| row.and_then(shown).unwrap_or_else(|| render::NONE.to_owned()));
            let (backbone, depth, layers) = setting;
            columns.push(Shown {
                name: format!("{} {depth}/{layers}", backbone_label(backbone)),
                cells: cells.collect(),
                is_number: true,
            });
        }
        Ok(Self { metric: known[place].clone(), columns, best, notes: Vec::new() })
    }

    /// With these lines below the table.
    #[must_use]
    pub fn noted(mut self, notes: Vec<String>) -> Self {
        self.notes = notes;
        self
    }

    /// For a terminal of so many columns; `*` after the best.
    pub fn on_screen(&self, width: Option<usize>) -> String {
        let mut columns = self.columns.clone();
        for (at, column) in columns.iter_mut().enumerate().skip(1) {
            for (row, cell) in column.cells.iter_mut().enumerate() {
                cell.push(if self.best.contains(&(row, at)) { '*' } else { ' ' });
            }
        }
        let table = render::fitted(&columns, 1, width);
        let notes: String = self.notes.iter().map(|note| format!("{note}\n")).collect();
        format!("{}\n\n{table}\n* best of the pruned variants of a column\n{notes}", self.metric)
    }

    pub fn markdown(&self) -> String {
        let table = render::markdown(&self.columns, |row, column| self.best.contains(&(row, column)));
        let notes: String = self.notes.iter().map(|note| format!("\n{note}\n")).collect();
        format!("{}\n\n{table}\nBold: the best of the pruned variants of a column.\n{notes}", self.metric)
    }
}

/// What a row is called.
struct Methods {
    /// Whether calibrations tell rows apart.
    calibration: bool,
}

impl Methods {
    /// Whether it is the dense backbone, its selection, and its name.
    fn of(&self, row: &Row) -> (bool, String, String) {
        if row.depth == 0 {
            return (true, String::new(), criterion::DENSE.label.to_owned());
        }
        let calibration = if self.calibration { format!(", {}", row.calibration) } else { String::new() };
        let text = match row.recovery.as_str() {
            recovery::NONE => criterion::label(&row.criterion).to_owned(),
            recovery => format!("+ {}", recovery::label(recovery)),
        };
        (false, format!("{}{calibration}", row.criterion), text + &calibration)
    }
}

fn push<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Measured;
    use super::*;

    fn row(backbone: &str, depth: usize, recovery: &str, value: Option<f64>) -> Row {
        let of = |text: &str| if depth == 0 { Row::NONE.to_owned() } else { text.to_owned() };
        Row {
            backbone: backbone.into(),
            criterion: of("llm-streamline"),
            depth,
            layers_removed: Vec::new(),
            layers: 16,
            recovery: of(recovery),
            calibration: of("c4:8x64@0"),
            values: vec![Some(Measured::from(7.0)), value.map(Measured::from)],
            seconds: 0.0,
            notes: String::new(),
            status: "ok".into(),
        }
    }

    fn protocols() -> [Protocol; 2] {
        let text = Protocol::Windows {
            corpus: "c4".into(),
            rule: "c4".into(),
            length: 64,
            limit: None,
            windows: None,
            all: None,
            generated: false,
        };
        [text, Protocol::Average { tasks: 2 }]
    }

    #[test]
    fn methods_stand_in_rows_and_backbones_with_their_depths_in_columns() {
        let rows = [
            row("a", 0, "", Some(80.0)),
            row("a", 4, "none", Some(50.0)),
            row("a", 4, "ghosted", Some(60.0)),
            row("a", 6, "none", Some(45.5)),
            row("b", 0, "", Some(90.0)),
            row("b", 4, "none", Some(70.0)),
            row("b", 4, "ghosted", None),
        ];
        let wide = Wide::new(&protocols(), &rows, None).unwrap();
        let expected = "\
average

| | a 4/16 | a 6/16 | b 4/16 |
| --- | ---: | ---: | ---: |
| Dense | 80.00 | 80.00 | 90.00 |
| LLM-Streamline | 50.00 | **45.50** | **70.00** |
| + Ghost Layer (Ours) | **60.00** | — | — |

Bold: the best of the pruned variants of a column.
";
        assert_eq!(wide.markdown().replace("|  |", "| |"), expected);
        assert!(wide.on_screen(None).contains("60.00*"));
        let text = Wide::new(&protocols(), &rows, Some("ppl c4@64")).unwrap().markdown();
        assert!(text.starts_with("ppl c4@64") && text.contains("**7.0000**"), "{text}");
    }

    #[test]
    fn a_metric_that_is_misspelt_is_named_with_the_nearest() {
        let error = Wide::new(&protocols(), &[row("a", 0, "", None)], Some("avrage")).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("did you mean `average`?"), "{error}");
    }
}
