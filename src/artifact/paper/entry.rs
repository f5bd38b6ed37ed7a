//! One printed number.

use serde::Deserialize;

use crate::error::{Error, ErrorKind, Result};
use crate::files::csv::{self, wrong};
use crate::metric;
use crate::recovery;
use crate::results::record::{Condition, DENSE, Record};

/// The columns of the files.
pub(super) const HEAD: [&str; 11] = [
    "artifact",
    "backbone",
    "total_layers",
    "pruned_layers",
    "criterion",
    "recovery",
    "finetuned",
    "calibration",
    "metric",
    "value",
    "std",
];

/// A line of them.
#[derive(Deserialize)]
struct PaperLine {
    artifact: String,
    backbone: String,
    total_layers: usize,
    pruned_layers: usize,
    criterion: String,
    recovery: String,
    finetuned: bool,
    calibration: String,
    metric: String,
    /// As printed.
    value: String,
    std: String,
}

/// A number of the paper, where it stands, and how it is printed.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperNumber {
    /// The table: `table2`, …
    pub artifact: String,
    /// The table's file, as messages call it.
    pub file: String,
    /// The line of the table's file, counted from 1; the head is line 1.
    pub line: usize,
    /// The value as printed, with its trailing zeros; empty without a value.
    pub printed: String,
    pub record: Record,
}

impl PaperNumber {
    /// The entries of a table's file.
    ///
    /// # Errors
    /// Another head; a line with too few or too many columns, of another table, or with a field that does not hold what
    /// it should. The file and the line are named.
    pub fn parse(artifact: &str, text: &str) -> Result<Vec<Self>> {
        let file = format!("{artifact}.csv");
        let rows = csv::rows::<PaperLine>(&file, &HEAD, text)?;
        let number = |(line, row): (usize, PaperLine)| {
            if row.artifact != artifact {
                return Err(wrong("artifact", &format!("`{artifact}`"), &row.artifact).at(format!("{file}:{line}")));
            }
            Self::of(&file, line, row)
        };
        rows.into_iter().map(number).collect()
    }

    /// The entries of anybody's file of that form, of whatever tables.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub(super) fn tidy(file: &str, text: &str) -> Result<Vec<Self>> {
        let rows = csv::rows::<PaperLine>(file, &HEAD, text).map_err(bad)?;
        rows.into_iter().map(|(line, row)| Self::of(file, line, row).map_err(bad)).collect()
    }

    fn of(file: &str, line: usize, row: PaperLine) -> Result<Self> {
        Self::checked(file, line, row).map_err(|error| error.at(format!("{file}:{line}")))
    }

    fn checked(file: &str, line: usize, row: PaperLine) -> Result<Self> {
        for (name, field) in [
            ("artifact", &row.artifact),
            ("backbone", &row.backbone),
            ("criterion", &row.criterion),
            ("recovery", &row.recovery),
            ("calibration", &row.calibration),
            ("metric", &row.metric),
        ] {
            if field.is_empty() || field.contains('"') || field.trim() != field {
                return Err(wrong(name, "a word", field));
            }
        }
        let condition = Condition {
            backbone: row.backbone,
            layers: row.total_layers,
            depth: row.pruned_layers,
            criterion: row.criterion,
            recovery: row.recovery,
            finetuned: row.finetuned,
            calibration: row.calibration,
        };
        let (depth, layers) = (condition.depth, condition.layers);
        if depth >= layers {
            return Err(wrong("pruned_layers", &format!("less than the {layers} layers"), &depth.to_string()));
        }
        let dense = condition.criterion == DENSE;
        if (depth == 0) != dense || dense && condition.recovery != recovery::NONE {
            return Err(wrong(
                "criterion",
                "`dense` without a recovery where no layer is removed",
                &condition.criterion,
            ));
        }
        let metric = if row.metric == "average" { metric::ACCURACY.id.to_owned() } else { row.metric };
        let (value, error) = (decimal("value", &row.value)?, decimal("std", &row.std)?);
        let record = Record { condition, metric, value, error };
        Ok(Self { artifact: row.artifact, file: file.to_owned(), line, printed: row.value, record })
    }

    /// Digits after the point, as printed.
    pub fn decimals(&self) -> usize {
        self.printed.split_once('.').map_or(0, |(_, digits)| digits.len())
    }

    /// The value of one in the last printed digit: 0.01 for two decimals.
    pub fn unit(&self) -> f64 {
        0.1_f64.powi(i32::try_from(self.decimals()).unwrap_or(i32::MAX))
    }

    /// `table2.csv:7`.
    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }
}

/// What the program carries is damaged where it is wrong; a user's file is only wrong.
fn bad(error: Error) -> Error {
    error.of_kind(ErrorKind::BadInput)
}

/// Digits with at most one point among them; nothing for a cell without a number.
fn decimal(column: &str, field: &str) -> Result<Option<f64>> {
    if field.is_empty() {
        return Ok(None);
    }
    // Words such as `inf`, signs and exponents are numbers to `parse` but are not printed in tables.
    let plain = field.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match field.parse() {
        Ok(number) if plain => Ok(Some(number)),
        _ => Err(wrong(column, "a decimal number, or nothing", field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &str) -> Result<Vec<PaperNumber>> {
        PaperNumber::parse("t", &format!("{}\n{lines}", HEAD.join(",")))
    }

    #[test]
    fn an_empty_value_is_none() {
        let entries = parse("t,b,32,7,shortgpt,none,true,c4:32,boolq,,\n").unwrap();
        assert_eq!(entries[0].record.value, None);
        assert_eq!(entries[0].record.error, None);
        assert!(entries[0].record.condition.finetuned);
        assert_eq!((entries[0].decimals(), entries[0].printed.as_str()), (0, ""));
    }

    #[test]
    fn the_last_digit_is_as_printed() {
        for (printed, decimals, unit) in [("45.00", 2, 0.01), ("362.6", 1, 0.1), ("7", 0, 1.0)] {
            let entry = &parse(&format!("t,b,32,7,shortgpt,none,false,c4,boolq,{printed},")).unwrap()[0];
            assert_eq!(entry.decimals(), decimals);
            assert!((entry.unit() - unit).abs() < 1e-15, "{printed}");
        }
    }

    #[test]
    fn a_wrong_line_is_refused_and_named() {
        let good = "t,b,32,7,shortgpt,none,false,c4,boolq,50.00,";
        assert!(parse(good).is_ok());
        for (line, found) in [
            ("t,b,32,7,shortgpt,none,false,c4,boolq,50.00", "10"),
            ("t,b,32,7,shortgpt,none,false,c4,boolq,50.00,,", "12"),
            ("t", "1"),
            ("u,b,32,7,shortgpt,none,false,c4,boolq,50.00,", "`u`"),
            ("t,,32,7,shortgpt,none,false,c4,boolq,50.00,", "``"),
            ("t,b,32,7, shortgpt,none,false,c4,boolq,50.00,", "` shortgpt`"),
            ("t,b,32,x,shortgpt,none,false,c4,boolq,50.00,", "`x`"),
            ("t,b,32,32,shortgpt,none,false,c4,boolq,50.00,", "`32`"),
            ("t,b,32,0,shortgpt,none,false,c4,boolq,50.00,", "`shortgpt`"),
            ("t,b,32,7,dense,none,false,c4,boolq,50.00,", "`dense`"),
            ("t,b,32,0,dense,ghosted,false,c4,boolq,50.00,", "`dense`"),
            ("t,b,32,7,shortgpt,none,no,c4,boolq,50.00,", "`no`"),
            ("t,b,32,7,shortgpt,none,false,c4,boolq,NaN,", "`NaN`"),
            ("t,b,32,7,shortgpt,none,false,c4,boolq,5e1,", "`5e1`"),
            ("t,b,32,7,shortgpt,none,false,c4,boolq,50.00,1.2.3", "`1.2.3`"),
        ] {
            let text = parse(&format!("{good}\n{line}\n{good}")).unwrap_err().one_line();
            assert!(text.contains("at t.csv:3") && text.contains(&format!("found {found}")), "{line}: {text}");
        }
    }

    #[test]
    fn another_head_is_refused() {
        for text in ["", "artifact,backbone\n"] {
            assert!(PaperNumber::parse("t", text).unwrap_err().to_string().contains("t.csv:1"));
        }
    }
}
