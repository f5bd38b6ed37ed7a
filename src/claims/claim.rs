//! A sentence of the paper and the check that it comes to.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_saphyr::Spanned;

use super::expr::Truth;
use super::filter::{Field, Filter, Literal};
use super::parse::parse;
use super::source::{self, Only, Written, items, names, place};
use super::token::Fault;
use super::words::{ARTIFACTS, Complaint};
use crate::error::{Error, Result};

/// A claim of the paper.
#[derive(Debug, Clone, Serialize)]
pub struct Claim {
    pub id: String,
    /// Whose records it is about: `table2`, or several.
    pub artifacts: Vec<String>,
    /// The paper's sentence.
    pub says: String,
    /// Where the paper says it.
    #[serde(rename = "where")]
    pub place: String,
    /// How a word of the sentence was read that is not a number: "competitive" as "first or second".
    pub reading: Option<String>,
    /// There is one check for each combination of these that the records have; a single one where there are none.
    pub over: Vec<Field>,
    /// The check as it is written.
    pub check: String,
    pub holds: Needed,
    #[serde(skip)]
    pub(super) only: Vec<Filter>,
    #[serde(skip)]
    pub(super) truth: Truth,
}

/// In how many groups the check must be true for the claim to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    All,
    /// In more than half of them.
    Most,
    AtLeast(usize),
    Any,
}

impl fmt::Display for Needed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Needed::All => f.write_str("all"),
            Needed::Most => f.write_str("most"),
            Needed::AtLeast(count) => write!(f, "at least {count}"),
            Needed::Any => f.write_str("any"),
        }
    }
}

impl Serialize for Needed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Needed {
    fn read(text: &str) -> Result<Needed, Complaint> {
        const WORDS: [&str; 4] = ["all", "most", "at least N", "any"];
        match text {
            "all" => Ok(Needed::All),
            "most" => Ok(Needed::Most),
            "any" => Ok(Needed::Any),
            _ => {
                let count = text.strip_prefix("at least ").and_then(|count| count.trim().parse().ok());
                match count {
                    Some(count) if count > 0 => Ok(Needed::AtLeast(count)),
                    _ => Err(Complaint::unknown("quantity", text, &WORDS)),
                }
            }
        }
    }

    /// Whether `held` of `of` groups are enough, when `unknown` of them could still turn out to be true. None where that
    /// is open, where there is no group, and where there are fewer groups than the claim asks for.
    pub(super) fn decide(self, held: usize, unknown: usize, of: usize) -> Option<bool> {
        let needed = match self {
            Needed::All => of,
            Needed::Most => of / 2 + 1,
            Needed::AtLeast(count) => count,
            Needed::Any => 1,
        };
        if of == 0 || needed > of {
            None
        } else if held >= needed {
            Some(true)
        } else if held + unknown < needed {
            Some(false)
        } else {
            None
        }
    }
}

/// Reads the claims of a file; `file_name` is how messages name it.
///
/// # Errors
/// Bad input, with file, line and column: text that is not a list of claims, unknown, doubled or missing keys, values of
/// the wrong type, and everything in a check that could not be evaluated: unknown functions, metrics, fields and names,
/// types that do not fit. Also two claims of the same id, and a file without claims.
pub fn load(text: &str, file_name: &str) -> Result<Vec<Claim>> {
    let written = source::read(text, file_name)?;
    if written.is_empty() {
        return Err(Error::bad_input("there are no claims").at(file_name).expected("a list of claims"));
    }
    let mut claims: Vec<Claim> = Vec::with_capacity(written.len());
    for claim in &written {
        let claim_place = place(file_name, &claim.id);
        if let Some(first) = written.iter().take(claims.len()).find(|first| first.id.value == claim.id.value) {
            return Err(Error::bad_input(format!("two claims are called `{}`", claim.id.value))
                .at(claim_place)
                .hint(format!("the first one is at {}", place(file_name, &first.id))));
        }
        claims.push(Claim::read(claim, file_name)?);
    }
    Ok(claims)
}

impl Claim {
    fn read(written: &Written, file: &str) -> Result<Claim> {
        let id = written.id.value.clone();
        if id.is_empty() || !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(Error::bad_input(format!("`{id}` cannot name a claim"))
                .at(place(file, &written.id))
                .expected("letters, digits and hyphens"));
        }
        let holds = Needed::read(written.holds.value.trim());
        Ok(Claim {
            artifacts: artifacts(written, file)?,
            says: sentence("says", &written.says, file)?,
            place: sentence("where", &written.place, file)?,
            reading: written.reading.as_ref().map(|text| sentence("reading", text, file)).transpose()?,
            over: over(written, file)?,
            only: only(&written.only, file)?,
            truth: parse(&written.check.value).map_err(|fault| explain(fault, &written.check, file))?,
            check: written.check.value.trim().to_owned(),
            holds: holds.map_err(|complaint| complaint.into_error().at(place(file, &written.holds)))?,
            id,
        })
    }
}

fn sentence(key: &str, text: &Spanned<String>, file: &str) -> Result<String> {
    let words = text.value.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.is_empty() {
        return Err(Error::bad_input(format!("`{key}` is empty")).at(place(file, text)));
    }
    Ok(words)
}

fn artifacts(written: &Written, file: &str) -> Result<Vec<String>> {
    let mut artifacts = Vec::new();
    for (place, name) in names(file, &written.artifact)? {
        if !ARTIFACTS.contains(&name) {
            return Err(Complaint::unknown("artifact", name, &ARTIFACTS).into_error().at(place));
        }
        artifacts.push(name.to_owned());
    }
    if artifacts.is_empty() {
        return Err(Error::bad_input("the claim is about no artifact").at(place(file, &written.artifact)));
    }
    Ok(artifacts)
}

fn over(written: &Written, file: &str) -> Result<Vec<Field>> {
    let mut fields = Vec::new();
    for (place, name) in names(file, &written.over)? {
        let field = Field::named(name).map_err(|complaint| complaint.into_error().at(place.clone()))?;
        if fields.contains(&field) {
            return Err(Error::bad_input(format!("`{name}` stands twice in `over`")).at(place));
        }
        fields.push(field);
    }
    Ok(fields)
}

fn only(only: &Only, file: &str) -> Result<Vec<Filter>> {
    let mut filters = Vec::new();
    for (key, values) in &only.0 {
        let at = |complaint: Complaint, place: String| complaint.into_error().at(place);
        let field = Field::named(&key.value).map_err(|complaint| at(complaint, place(file, key)))?;
        let listed = items(file, values)?;
        if let [_, _, ..] = listed.as_slice()
            && let Some((place, _)) = listed.iter().find(|(_, literal)| negates(literal))
        {
            let complaint = Complaint::new("`not` stands in a list").hint("write one filter for what remains");
            return Err(at(complaint, place.clone()));
        }
        // `recovery: not none` is a text in YAML.
        let (literals, negated): (Vec<Literal>, bool) = match listed.as_slice() {
            [(_, literal @ Literal::Text(text))] if negates(literal) => {
                (vec![Literal::Text(text.trim_start_matches("not ").trim().to_owned())], true)
            }
            _ => (listed.into_iter().map(|(_, literal)| literal.clone()).collect(), false),
        };
        let filter = Filter::new(field, &literals, negated);
        filters.push(filter.map_err(|complaint| at(complaint, place(file, values)))?);
    }
    Ok(filters)
}

fn negates(literal: &Literal) -> bool {
    matches!(literal, Literal::Text(text) if text.starts_with("not "))
}

/// A fault in a check: the place of the check in the file, and a caret below the character in the check.
fn explain(fault: Fault, check: &Spanned<String>, file: &str) -> Error {
    // A check that is written over several lines is one line here, with each character where it was.
    let line: String = check.value.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
    let caret = " ".repeat(fault.start);
    let here = format!("{}, character {} of the check", place(file, check), fault.start + 1);
    fault.complaint.into_error().at(here).found(format!("{}\n{caret}^", line.trim_end()))
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
