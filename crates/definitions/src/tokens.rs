//! Requests as token ids.

use std::collections::HashMap;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::tasks::{Bos, Encoder, Tokenised, continuation, rolling};
use rayon::prelude::*;

use crate::metric::Output;
use crate::task::{Ask, Request, Task};

/// Converts likelihood requests to token ids, document by document: its requests, or the windows of its only one.
/// `max_length` is the number of tokens that the model sees.
///
/// # Errors
/// A document that cannot be scored, with task, row and choice: see [`continuation`] and [`rolling`].
pub fn tokenised(
    task: &Task,
    requests: &[Request],
    encoder: &impl Encoder,
    bos: Bos,
    max_length: usize,
) -> Result<Vec<Vec<Tokenised>>> {
    let of_documents: Vec<&[Request]> = requests.chunk_by(|a, b| a.document == b.document).collect();
    let documents = of_documents.par_iter();
    let all: Vec<Result<Vec<Tokenised>>> =
        documents.map(|requests| tokenised_document(task, requests, encoder, bos, max_length)).collect();
    // Collected first, so that of several errors it is always the first document's that is shown.
    all.into_iter().collect()
}

fn tokenised_document(
    task: &Task,
    requests: &[Request],
    encoder: &impl Encoder,
    bos: Bos,
    max_length: usize,
) -> Result<Vec<Tokenised>> {
    // Nearly always all choices share one context.
    let mut known = HashMap::new();
    let mut texts = Vec::with_capacity(requests.len());
    for request in requests {
        let tokens = match &request.ask {
            Ask::LogLikelihood { context, continuation: text } => {
                let pair = (context.as_str(), text.as_str());
                continuation(pair, encoder, bos, max_length, &mut known).map(|tokens| vec![tokens])
            }
            Ask::Rolling { text } => rolling(text, encoder, bos, max_length),
            Ask::Generate { .. } => Err(Error::job("a generation has no likelihood")),
        };
        texts.extend(tokens.map_err(|error| {
            let choice = task.definition.output == Output::MultipleChoice;
            let error = if choice { error.at(format!("choice {}", request.index + 1)) } else { error };
            error.at(task.place(request.document))
        })?);
    }
    Ok(texts)
}
