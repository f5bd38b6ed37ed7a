//! Named protocols: a number may only be compared with another one made the same way, so each column says how it was made.

use serde::Serialize;

/// How the numbers of one perplexity column were made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Protocol {
    /// The name of the protocol: `windows`.
    pub protocol: String,
    /// The corpus' name in the grid.
    pub corpus: String,
    /// The rule that joins its rows and draws its windows.
    pub rule: String,
    /// Tokens of a window.
    pub length: usize,
    /// Only so many windows, the first ones.
    pub limit: Option<usize>,
}

impl Protocol {
    /// The column's name: `ppl wikitext2-test@512`.
    pub fn column(&self) -> String {
        format!("ppl {}@{}", self.corpus, self.length)
    }

    /// The column explained, for the line below a table.
    pub fn note(&self) -> String {
        let windows = match self.limit {
            Some(limit) => format!("the first {limit} windows"),
            None => "all windows".to_owned(),
        };
        format!(
            "`{}`: perplexity, protocol `{}`, {windows} of {} tokens, text joined and cut by the rule `{}`",
            self.column(),
            self.protocol,
            self.length,
            self.rule
        )
    }
}
