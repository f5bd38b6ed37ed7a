//! Counts the paper's sentences by verdict.

use std::fmt;

use super::Judgement;
use crate::artifact::page::ClaimRow;

/// Number of sentences for each verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentenceCount {
    pub sentences: usize,
    /// Counts in the order of [`Judgement::ALL`].
    counts: [usize; Judgement::ALL.len()],
}

pub fn count_sentences<'a>(
    claims: impl IntoIterator<Item = &'a ClaimRow>,
    verdict: fn(&ClaimRow) -> Judgement,
) -> SentenceCount {
    let verdicts = ClaimRow::by_sentence(claims, verdict);
    let counts = Judgement::ALL.map(|judgement| verdicts.iter().filter(|verdict| **verdict == judgement).count());
    SentenceCount { sentences: verdicts.len(), counts }
}

/// Formats counts such as `30 sentences: 12 hold, 9 fail, 3 are unknown, 6 are not applicable`.
impl fmt::Display for SentenceCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = Judgement::ALL.into_iter().zip(&self.counts).filter(|(_, count)| **count > 0);
        let counts: Vec<String> = counts
            .map(|(verdict, &count)| match verdict {
                Judgement::Unknown | Judgement::NotApplicable => {
                    format!("{count} {} {}", if count == 1 { "is" } else { "are" }, verdict.label())
                }
                Judgement::Holds | Judgement::Fails => format!("{count} {}", verdict.verb(count)),
            })
            .collect();
        let sentences = if self.sentences == 1 { "sentence" } else { "sentences" };
        write!(f, "{} {sentences}: {}", self.sentences, counts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_with_several_claims_counts_once() {
        let rows = [
            row("accuracy and perplexity", Judgement::Holds),
            row("accuracy and perplexity", Judgement::Fails),
            row("both latencies", Judgement::Holds),
            row("both latencies", Judgement::Holds),
            row("widens", Judgement::Unknown),
            row("on LLaMA-2-7B", Judgement::NotApplicable),
            row("on LLaMA-2-7B", Judgement::NotApplicable),
        ];
        let counted = count_sentences(&rows, |row| row.verdict);
        assert_eq!(counted.to_string(), "4 sentences: 1 holds, 1 fails, 1 is unknown, 1 is not applicable");
        assert_eq!(count_sentences(&rows[..2], |row| row.verdict).to_string(), "1 sentence: 1 fails");
    }

    fn row(sentence: &str, verdict: Judgement) -> ClaimRow {
        ClaimRow { sentence: sentence.into(), verdict, ..ClaimRow::default() }
    }
}
