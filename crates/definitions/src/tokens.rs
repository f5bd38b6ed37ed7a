//! Tokenization of requests.

use std::collections::HashMap;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::tasks::{Bos, Encoder, TokenizedRequest, continuation, rolling};
use rayon::prelude::*;

use crate::metric::Output;
use crate::task::{Request, RequestKind, Task};

/// Tokenizes the log-likelihood requests of each document. `max_length` is the model's context length in tokens. A
/// rolling request is split into windows of at most that length.
///
/// # Errors
/// Fails if a document cannot be scored (see [`continuation`] and [`rolling`]). The error names the task, row and
/// choice.
pub fn tokenize_requests(
    task: &Task,
    requests: &[Request],
    encoder: &impl Encoder,
    bos: Bos,
    max_length: usize,
) -> Result<Vec<Vec<TokenizedRequest>>> {
    let by_document: Vec<&[Request]> = requests.chunk_by(|a, b| a.document == b.document).collect();
    let documents = by_document.par_iter();
    let all: Vec<Result<Vec<TokenizedRequest>>> =
        documents.map(|requests| tokenize_document(task, requests, encoder, bos, max_length)).collect();
    // Collect all results first, so that the error of the first failing document is reported.
    all.into_iter().collect()
}

fn tokenize_document(
    task: &Task,
    requests: &[Request],
    encoder: &impl Encoder,
    bos: Bos,
    max_length: usize,
) -> Result<Vec<TokenizedRequest>> {
    // All choices usually share one context, so cache its tokens.
    let mut context_tokens = HashMap::new();
    let mut texts = Vec::with_capacity(requests.len());
    for request in requests {
        let tokens = match &request.kind {
            RequestKind::LogLikelihood { context, continuation: text } => {
                let pair = (context.as_str(), text.as_str());
                continuation(pair, encoder, bos, max_length, &mut context_tokens).map(|tokens| vec![tokens])
            }
            RequestKind::Rolling { text } => rolling(text, encoder, bos, max_length),
            RequestKind::Generate { .. } => Err(Error::job("cannot compute a log-likelihood for a generation request")),
        };
        texts.extend(tokens.map_err(|error| {
            let choice = task.definition.output == Output::MultipleChoice;
            let error = if choice { error.at(format!("choice {}", request.index + 1)) } else { error };
            error.at(task.place(request.document))
        })?);
    }
    Ok(texts)
}
