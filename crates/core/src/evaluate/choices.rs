//! Eval set of multiple-choice documents. The programs of all variants form one [`Trie`], and a single run of the trie
//! yields the log-likelihoods of all choices for all variants.
//!
//! The choices of a document usually share a long context. The common prefix runs once, as the parent segment of all
//! choices. Choices of a document with equal inputs are merged, so their results are identical. Only rows that score a
//! continuation go through the output head. Choices in different length regimes ([`Config::length_regime`]) share no
//! prefix, because their rotary frequencies differ.

use std::collections::BTreeMap;

use super::eval_set::{ChunkValues, EvalPart, EvalSet, run_in_parts};
use crate::error::{Error, Result};
use crate::model::{Batch, Config, Engine, LengthRegime, Load, Prediction, ScoredRow, Trie};
use crate::tasks::Score;

/// Token ids of one choice.
#[derive(Debug, Clone, Copy)]
pub struct TokenizedChoice<'a> {
    /// Model input: context and continuation without the last token.
    pub input: &'a [u32],
    /// Scored tokens, predicted by the last rows of `input`. Their number must not exceed the length of `input`.
    pub continuation: &'a [u32],
}

/// Common prefix of several inputs, and the remaining tokens of each input as a branch.
struct PrefixTree<'a> {
    prefix: &'a [u32],
    branches: Vec<&'a [u32]>,
}

impl<'a> PrefixTree<'a> {
    fn new(inputs: &[&'a [u32]]) -> Self {
        let first = inputs.first().copied().unwrap_or_default();
        let prefix_length =
            inputs.iter().map(|input| first.iter().zip(*input).take_while(|(a, b)| a == b).count()).min().unwrap_or(0);
        Self { prefix: &first[..prefix_length], branches: inputs.iter().map(|input| &input[prefix_length..]).collect() }
    }

    fn tokens(&self) -> usize {
        self.prefix.len() + self.branches.iter().map(|branch| branch.len()).sum::<usize>()
    }

    /// Appends the segments to a batch. Returns the first row of the prefix and of each branch.
    fn push(&self, batch: &mut Batch) -> (usize, Vec<usize>) {
        let parent = (!self.prefix.is_empty()).then_some(batch.segments.len());
        let start = batch.tokens();
        if parent.is_some() {
            batch.push(self.prefix, None);
        }
        // An input that is a prefix of all others has an empty branch.
        (
            start,
            self.branches
                .iter()
                .map(|branch| if branch.is_empty() { batch.tokens() } else { batch.push(branch, parent) })
                .collect(),
        )
    }
}

/// Prefix trees of a document's distinct inputs, one per length regime.
struct DocumentTrees<'a> {
    trees: Vec<PrefixTree<'a>>,
    /// Tree and branch indices of each choice.
    choice_branches: Vec<(usize, usize)>,
}

impl<'a> DocumentTrees<'a> {
    fn new(choices: &[TokenizedChoice<'a>], config: &Config) -> Self {
        let mut inputs: Vec<(LengthRegime, Vec<&'a [u32]>)> = Vec::new();
        let mut choice_branches = Vec::with_capacity(choices.len());
        for choice in choices {
            let regime = config.length_regime(choice.input.len());
            let tree = inputs.iter().position(|(known, _)| *known == regime).unwrap_or_else(|| {
                inputs.push((regime, Vec::new()));
                inputs.len() - 1
            });
            let branches = &mut inputs[tree].1;
            let branch = branches.iter().position(|input| *input == choice.input).unwrap_or_else(|| {
                branches.push(choice.input);
                branches.len() - 1
            });
            choice_branches.push((tree, branch));
        }
        Self { trees: inputs.iter().map(|(_, inputs)| PrefixTree::new(inputs)).collect(), choice_branches }
    }

    fn tokens(&self) -> usize {
        self.trees.iter().map(PrefixTree::tokens).sum()
    }
}

/// Eval set of documents, with two values per choice (see [`scores_of_choices`]).
pub struct MultipleChoiceEval<'a> {
    documents: Vec<Vec<TokenizedChoice<'a>>>,
    trees: Vec<DocumentTrees<'a>>,
    batches: Vec<Vec<usize>>,
}

/// Converts values into choice scores. Each choice has two values: its log-likelihood and its greedy flag (1 or 0).
pub fn scores_of_choices(values: &[f64]) -> Vec<Score> {
    values.chunks_exact(2).map(|pair| Score { log_likelihood: pair[0], greedy: pair[1] != 0.0 }).collect()
}

impl<'a> MultipleChoiceEval<'a> {
    /// Groups documents into batches of up to `batch_tokens` tokens. A document with more tokens gets a separate batch.
    /// The batch size affects results only through rounding.
    ///
    /// # Errors
    /// Fails if a continuation is longer than its input.
    pub fn new(documents: Vec<Vec<TokenizedChoice<'a>>>, config: &Config, batch_tokens: usize) -> Result<Self> {
        for (document, choices) in documents.iter().enumerate() {
            for (index, choice) in choices.iter().enumerate() {
                if choice.continuation.len() > choice.input.len() {
                    return Err(Error::job("a continuation is longer than its input")
                        .at(format!("document {document}, choice {index}"))
                        .expected(format!("at most {} tokens, as in the input", choice.input.len()))
                        .found(format!("{} tokens", choice.continuation.len())));
                }
            }
        }
        let trees: Vec<DocumentTrees<'a>> =
            documents.iter().map(|choices| DocumentTrees::new(choices, config)).collect();
        let batches = group_into_batches(&trees, batch_tokens);
        Ok(Self { documents, trees, batches })
    }

    /// Builds a batch of documents and the function that extracts its values.
    fn build_part(&self, documents: &[usize]) -> EvalPart<'_> {
        let mut batch = Batch::default();
        // Scored tokens by batch row, each with the index of its choice within the part.
        let mut targets: BTreeMap<usize, Vec<(u32, usize)>> = BTreeMap::new();
        let mut choices = 0;
        for &document in documents {
            let document_trees = &self.trees[document];
            let rows: Vec<(usize, Vec<usize>)> =
                document_trees.trees.iter().map(|tree| tree.push(&mut batch)).collect();
            for (choice, &(tree, branch)) in self.documents[document].iter().zip(&document_trees.choice_branches) {
                let (start, branches) = &rows[tree];
                let begin = choice.input.len() - choice.continuation.len();
                for (position, &token) in (begin..).zip(choice.continuation) {
                    let row = match position.checked_sub(document_trees.trees[tree].prefix.len()) {
                        None => start + position,
                        Some(offset) => branches[branch] + offset,
                    };
                    targets.entry(row).or_default().push((token, choices));
                }
                choices += 1;
            }
        }
        // Index of each target's choice, in target order.
        let mut target_choices = Vec::new();
        for (&row, row_targets) in &targets {
            for &(token, choice) in row_targets {
                batch.targets.push(ScoredRow { row, token });
                target_choices.push(choice);
            }
        }
        let extract_values = Box::new(move |predictions: &[Prediction]| {
            let mut values = [0.0, 1.0].repeat(choices);
            for (choice, prediction) in target_choices.iter().zip(predictions) {
                values[2 * choice] += f64::from(prediction.log_probability);
                if !prediction.is_greedy {
                    values[2 * choice + 1] = 0.0;
                }
            }
            values
        });
        EvalPart { batch, extract_values }
    }
}

impl EvalSet for MultipleChoiceEval<'_> {
    fn chunks(&self) -> usize {
        self.batches.len()
    }

    fn tokens(&self, chunk: usize) -> usize {
        self.batches[chunk].iter().map(|&document| self.trees[document].tokens()).sum()
    }

    fn load(&self, chunks: &[usize]) -> Load {
        let tokens = chunks.iter().map(|&chunk| self.tokens(chunk)).sum();
        let members = chunks.iter().flat_map(|&chunk| &self.batches[chunk]);
        let count = members.clone().count();
        let scored = members.flat_map(|&document| &self.documents[document]).map(|c| c.continuation.len()).sum();
        Load { tokens, scored, length: tokens / count.max(1) }
    }

    fn count(&self, chunk: usize) -> usize {
        2 * self.batches[chunk].iter().map(|&document| self.documents[document].len()).sum::<usize>()
    }

    fn run(&self, engine: &dyn Engine, trie: &Trie, chunks: &[usize], seconds: &mut [f64]) -> Result<ChunkValues> {
        let members: Vec<&[usize]> = chunks.iter().map(|&chunk| self.batches[chunk].as_slice()).collect();
        run_in_parts(
            engine,
            trie,
            &members,
            |&document: &usize| self.trees[document].tokens(),
            seconds,
            |documents| self.build_part(documents),
        )
    }

    fn assemble(&self, chunks: &[Vec<f64>]) -> Vec<f64> {
        let mut document_scores: Vec<&[f64]> = vec![&[]; self.documents.len()];
        for (members, values) in self.batches.iter().zip(chunks) {
            let mut rest = values.as_slice();
            for &document in members {
                let (scores, later) = rest.split_at((2 * self.documents[document].len()).min(rest.len()));
                (document_scores[document], rest) = (scores, later);
            }
        }
        document_scores.concat()
    }
}

/// Groups documents into batches. The longest documents come first, so that a batch that exceeds the memory fails at
/// the start of a run.
fn group_into_batches(trees: &[DocumentTrees<'_>], budget: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..trees.len()).collect();
    order.sort_by_key(|&document| std::cmp::Reverse(trees[document].tokens()));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut free = 0;
    for document in order {
        let tokens = trees[document].tokens();
        match batches.last_mut() {
            Some(batch) if tokens <= free => batch.push(document),
            _ => {
                batches.push(vec![document]);
                free = budget.max(tokens);
            }
        }
        free -= tokens;
    }
    batches
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::model::{LongRope, Scaling};

    fn config(folder: &str) -> Config {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch").join(folder);
        Config::read_file(&folder.join("config.json")).unwrap()
    }

    fn build_trees<'a>(inputs: &[&'a [u32]], config: &Config) -> DocumentTrees<'a> {
        let choices: Vec<_> = inputs.iter().map(|input| TokenizedChoice { input, continuation: &input[..1] }).collect();
        DocumentTrees::new(&choices, config)
    }

    #[test]
    fn shared_prefix_of_choices_is_stored_once() {
        let config = config("llama-gqa");
        let shared = build_trees(&[&[1, 2, 3, 4], &[1, 2, 5], &[1, 2, 3, 4]], &config);
        let tree = &shared.trees[0];
        assert_eq!((tree.prefix, tree.branches.as_slice()), (&[1, 2][..], &[&[3, 4][..], &[5]][..]));
        assert_eq!(shared.choice_branches, [(0, 0), (0, 1), (0, 0)]);
        assert_eq!((shared.trees.len(), shared.tokens()), (1, 5));
        let equal = build_trees(&[&[1, 2], &[1, 2]], &config);
        assert_eq!((equal.tokens(), equal.trees[0].branches.as_slice()), (2, &[&[][..]][..]));
    }

    #[test]
    fn choices_of_different_rope_regimes_share_no_prefix() {
        // Inputs of up to 3 tokens are in the short regime. For longer inputs, `dynamic` has one regime per length, and
        // `longrope` has a single regime.
        let inputs: [&[u32]; 5] = [&[1, 2, 3], &[1, 2, 3, 4], &[1, 2], &[1, 2, 3, 4, 5], &[1, 2, 6, 7]];
        let dynamic = Scaling::Dynamic { factor: 2.0, positions: 3 };
        let short = vec![1.0; 9];
        let long = vec![2.0; 9];
        let longrope = LongRope { short, long, original_max_position_embeddings: 3, attention: 1.0 };
        for (scaling, expected, tokens) in [
            (dynamic, [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1)], 3 + 6 + 5),
            (Scaling::LongRope(longrope), [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)], 3 + 2 + 2 + 3 + 2),
        ] {
            let name = scaling.name();
            let mut config = config("llama-gqa");
            config.rope.scaling = Some(scaling);
            let separate = build_trees(&inputs, &config);
            assert_eq!((separate.choice_branches.as_slice(), separate.tokens()), (&expected[..], tokens), "{name}");
        }
    }

    #[test]
    fn longest_documents_are_batched_first_up_to_the_budget() {
        let config = config("llama-gqa");
        let ids = [7; 100];
        let lengths = [5, 60, 7, 30, 30, 1];
        let trees: Vec<DocumentTrees<'_>> = lengths.iter().map(|&n| build_trees(&[&ids[..n]], &config)).collect();
        let batches = group_into_batches(&trees, 40);
        assert_eq!(batches, [vec![1], vec![3], vec![4, 2], vec![0, 5]]);
    }
}
