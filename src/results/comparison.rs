//! A published value beside ours. Who compares says the verdict; here it is data, and the words for it.

use serde::{Deserialize, Serialize};

/// A value of the paper and how ours stands to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PaperComparison {
    pub paper: f64,
    /// Ours less the paper's; none where ours failed.
    pub difference: Option<f64>,
    /// How far it may be off.
    pub tolerance: f64,
    pub verdict: PaperVerdict,
}

impl PaperComparison {
    /// Why nothing follows from the difference; none where something does.
    pub fn other_protocol(&self) -> Option<String> {
        match &self.verdict {
            PaperVerdict::OtherProtocol(differences) => Some(differences.join("; ")),
            _ => None,
        }
    }

    /// The paper's value as the paper prints it.
    pub fn paper_text(&self) -> String {
        format!("{:.2}", self.paper)
    }

    /// Ours less the paper's, with its sign; none where ours failed.
    pub fn difference_text(&self) -> Option<String> {
        let text = match self.difference? {
            large if large.abs() >= 1e7 => format!("{large:+.2e}"),
            difference => format!("{difference:+.2}"),
        };
        // What rounds to nothing is neither more nor less, and a hyphen is no minus.
        Some(match text.as_str() {
            "+0.00" | "-0.00" => "±0.00".to_owned(),
            other => other.replace('-', "−"),
        })
    }

    /// The paper's value, and ours less it with the verdict's sign: a short line each.
    pub fn said(&self) -> Vec<String> {
        let difference = self.difference_text().map(|text| format!("{text} {}", self.verdict.sign()));
        [Some(self.paper_text()), difference].into_iter().flatten().collect()
    }

    /// The verdict in a word, where there may be one.
    pub fn word(&self) -> Option<String> {
        self.other_protocol().is_none().then(|| self.verdict.to_string())
    }
}

/// What may be said of ours and the paper's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaperVerdict {
    /// Within the tolerance.
    Same,
    Differs,
    /// There is none of ours.
    #[default]
    Missing,
    /// Ours is made in another way, which is told: nothing follows from the difference.
    OtherProtocol(Vec<String>),
}

impl PaperVerdict {
    pub fn word(&self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Differs => "differs",
            Self::Missing => "missing",
            Self::OtherProtocol(_) => "other protocol",
        }
    }

    /// One character, so that nothing hangs on colour alone.
    pub fn sign(&self) -> &'static str {
        match self {
            Self::Same => "=",
            Self::Differs => "≠",
            Self::Missing => "",
            Self::OtherProtocol(_) => "~",
        }
    }
}

impl std::fmt::Display for PaperVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OtherProtocol(differences) => write!(f, "{}: {}", self.word(), differences.join("; ")),
            other => f.write_str(other.word()),
        }
    }
}
