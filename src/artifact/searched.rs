//! What a search leaves: its report in Markdown and JSON, and quality against speed and against bytes as figures.

use super::figure::{Axis, Dot, Drawing, Figure, Pareto, Plot, Surroundings, Width};
use crate::error::{Error, Result};
use crate::search::{Candidate, Fate, Found};

/// The files of some searches, by name.
///
/// # Errors
/// A drawing that fails.
pub fn search_files(name: &str, found: &[Found]) -> Result<Vec<(String, Vec<u8>)>> {
    let json = serde_json::to_string_pretty(found)
        .map_err(|error| Error::job("a search has no JSON form").found(error.to_string()))?;
    let report: Vec<String> = found.iter().map(Found::markdown).collect();
    let mut files = vec![
        (format!("{name}.json"), (json + "\n").into_bytes()),
        (format!("{name}.md"), report.join("\n").into_bytes()),
    ];
    for (at, one) in found.iter().enumerate() {
        for (form, drawing) in paretos(one)? {
            let number = if found.len() > 1 { format!("-{}", at + 1) } else { String::new() };
            let base = format!("{name}{number}-{form}");
            files.extend(drawing.forms().map(|(ending, bytes)| (format!("{base}.{ending}"), bytes.to_vec())));
        }
    }
    Ok(files)
}

/// The names that [`search_files`] may give, before anything is known of the searches.
pub fn search_names(name: &str, searches: usize) -> Vec<String> {
    let numbers: Vec<String> = match searches {
        1 => vec![String::new()],
        several => (1..=several).map(|at| format!("-{at}")).collect(),
    };
    let figures = numbers.iter().flat_map(|number| ["speed", "bytes"].map(|form| format!("{name}{number}-{form}")));
    let figures = figures.flat_map(|base| Drawing::ENDINGS.map(|ending| format!("{base}.{ending}")));
    [format!("{name}.json"), format!("{name}.md")].into_iter().chain(figures).collect()
}

/// What a candidate has on the axis to the right.
type Along = fn(&Candidate) -> f64;

/// Quality against speed, and against bytes.
fn paretos(found: &Found) -> Result<Vec<(&'static str, Drawing)>> {
    let Some(objective) = found.objectives.first() else { return Ok(Vec::new()) };
    let accuracy = objective.name == "accuracy";
    let y = match accuracy {
        true => Axis { label: "Accuracy in the race".into(), unit: "%".into(), ..Axis::default() },
        false => Axis { label: "Loss in the race, less is better".into(), unit: "nats".into(), ..Axis::default() },
    };
    let forms: [(&str, &str, &str, Along); 2] = [
        ("speed", "Speedup by the cost model", "×", |of| of.costs.speedup),
        ("bytes", "Weights", "MB", |of| of.costs.bytes as f64 / 1e6),
    ];
    let mut drawings = Vec::new();
    for (form, label, unit, x) in forms {
        let dot = |of: &Candidate| {
            let score = of.scores.first()?;
            // A method's look goes by its name without options.
            let method = of.recovery.split(['{', '(']).next().unwrap_or_default().to_owned();
            let faint = of.fate != Fate::Survived;
            let label = crate::recovery::label(&method).to_owned();
            Some(Dot { label, method, x: x(of), y: score.mean, error: score.half, faint })
        };
        let around = Surroundings {
            title: found.title(),
            description: format!("{} Each candidate's {} against: {label}.", found.sentence(), objective.name),
            heading: format!("{}, {}", found.backbone, found.budget),
            note: "Whiskers: 95 % intervals on the items that each saw. Faint: out of the race.".into(),
            width: Width::Column,
        };
        let plot = Plot::Pareto(Pareto {
            x: Axis { label: label.into(), unit: unit.into(), ..Axis::default() },
            y: y.clone(),
            dots: found.candidates.iter().filter_map(dot).collect(),
        });
        if found.candidates.iter().any(|of| !of.scores.is_empty()) {
            drawings.push((form, Figure { around, plot }.draw()?));
        }
    }
    Ok(drawings)
}
