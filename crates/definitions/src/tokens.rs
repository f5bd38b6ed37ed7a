//! Tokenization of requests.

use std::collections::HashMap;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::tasks::{Bos, Encoder, Tokenised, continuation, rolling};
use rayon::prelude::*;

use crate::metric::Output;
use crate::task::{Ask, Request, Task};

/// Tokenizes the log-likelihood requests of each document. A rolling request is split into windows of at most
/// `max_length` tokens, the context length of the model.
///
/// # Errors
/// Fails if a document cannot be scored, with task, row and choice: see [`continuation`] and [`rolling`].
pub fn tokenised(
    task: &Task,
    requests: &[Request],
    encoder: &impl Encoder,
    bos: Bos,
    max_length: usize,
) -> Result<Vec<Vec<Tokenised>>> {
    let of_documents: Vec<&[Request]> = requests.chunk_by(|a, b| a.document == b.document).collect();
    let tokenised = |requests_of_document: &&[Request]| -> Result<Vec<Tokenised>> {
        // All choices usually share one context, so cache its tokens.
        let mut known = HashMap::new();
        let mut texts = Vec::with_capacity(requests_of_document.len());
        for request in *requests_of_document {
            let located = |error: Error| {
                let choice = task.definition.output == Output::MultipleChoice;
                let error = if choice { error.at(format!("choice {}", request.index + 1)) } else { error };
                error.at(task.place(request.document))
            };
            match &request.ask {
                Ask::LogLikelihood { context, continuation: text } => {
                    let pair = (context.as_str(), text.as_str());
                    texts.push(continuation(pair, encoder, bos, max_length, &mut known).map_err(located)?);
                }
                Ask::Rolling { text } => texts.extend(rolling(text, encoder, bos, max_length).map_err(located)?),
                Ask::Generate { .. } => return Err(located(Error::job("a generation has no likelihood"))),
            }
        }
        Ok(texts)
    };
    let all: Vec<Result<Vec<Tokenised>>> = of_documents.par_iter().map(tokenised).collect();
    // Collect all results first, so that the error of the first failing document is reported.
    all.into_iter().collect()
}
