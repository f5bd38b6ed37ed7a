//! Byte-level BPE tokenizer of the backbones, trained deterministically on the corpus.

use serde_json::{Value, json};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer};

use ghostlab_core::error::{Error, Result};

/// End-of-text token. It separates documents, and may be added before a text.
pub const END: &str = "<|endoftext|>";

/// Tokenizer with the id of its end-of-text token.
#[derive(Debug, Clone)]
pub struct Tokens {
    inner: Tokenizer,
    pub end: u32,
}

fn failed(error: &(dyn std::error::Error + Send + Sync)) -> Error {
    Error::job("the tokenizer cannot be learnt or used").found(error)
}

impl Tokens {
    /// Trains a tokenizer with `vocab` tokens. With `begins`, it adds the end-of-text token before every text.
    ///
    /// # Errors
    /// Fails if the tokenizers crate reports an error.
    pub fn learn<'a>(texts: impl Iterator<Item = &'a str> + Send, vocab: usize, begins: bool) -> Result<Self> {
        let mut inner = Tokenizer::new(BPE::default());
        inner.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        inner.with_decoder(Some(ByteLevel::new(false, true, true)));
        let mut trainer = TrainerWrapper::from(
            BpeTrainerBuilder::new()
                .vocab_size(vocab)
                .show_progress(false)
                .special_tokens(vec![AddedToken::from(END, true)])
                .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
                .build(),
        );
        inner.train(&mut trainer, texts).map_err(|error| failed(error.as_ref()))?;
        let end = inner.token_to_id(END).ok_or_else(|| Error::job("the tokenizer lost its end-of-text token"))?;
        if begins {
            let template = TemplateProcessing::builder()
                .try_single(format!("{END} $A"))
                .and_then(|builder| builder.try_pair(format!("{END} $A $B")))
                .map_err(|error| Error::job("the tokenizer cannot be learnt").found(error))?
                .special_tokens(vec![(END, end)])
                .build()
                .map_err(|error| Error::job("the tokenizer cannot be learnt").found(error))?;
            inner.with_post_processor(Some(template));
        }
        Ok(Self { inner, end })
    }

    /// Reads a `tokenizer.json` written by [`Tokens::learn`].
    ///
    /// # Errors
    /// Fails if the file is invalid or lacks the end-of-text token.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let inner = Tokenizer::from_bytes(bytes).map_err(|error| failed(error.as_ref()))?;
        let end = inner
            .token_to_id(END)
            .ok_or_else(|| Error::bad_input("the tokenizer has no end-of-text token").expected(END))?;
        Ok(Self { inner, end })
    }

    pub fn size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Returns the contents of `tokenizer.json`.
    ///
    /// # Errors
    /// Fails if the tokenizers crate reports an error.
    pub fn json(&self) -> Result<String> {
        self.inner.to_string(true).map_err(|error| failed(error.as_ref()))
    }

    /// Returns the contents of Hugging Face's `tokenizer_config.json`.
    pub fn config(&self, context: usize) -> Value {
        json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END,
            "eos_token": END,
            "clean_up_tokenization_spaces": false,
            "model_max_length": context
        })
    }

    /// Tokenizes a text without special tokens.
    ///
    /// # Errors
    /// Fails if the text cannot be tokenized.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false).map_err(|error| failed(error.as_ref()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Concatenates tokenized documents, with an end-of-text token before each.
    ///
    /// # Errors
    /// Fails if a document cannot be tokenized.
    pub fn stream(&self, documents: &[String]) -> Result<Vec<u32>> {
        // Rayon tokenizes the documents in parallel, and keeps their order.
        let texts: Vec<&str> = documents.iter().map(String::as_str).collect();
        let encodings = self.inner.encode_batch_fast(texts, false).map_err(|error| failed(error.as_ref()))?;
        let mut ids = Vec::new();
        for encoding in encodings {
            ids.push(self.end);
            ids.extend_from_slice(encoding.get_ids());
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 3] =
        ["the cat sat on the mat.", "The dog saw the cat;\n it ran.", "a cat, a dog, a mat, 12 rats"];

    #[test]
    fn the_same_texts_give_the_same_bytes_and_decode_again() {
        let json = learn().json().unwrap();
        for _ in 0..5 {
            assert_eq!(learn().json().unwrap(), json);
        }
        let tokens = Tokens::parse(json.as_bytes()).unwrap();
        assert_eq!(tokens.json().unwrap(), json);
        let text = "a ZEBRA saw \u{2603}\n\nthe mat";
        let ids = tokens.inner.encode(text, true).unwrap().get_ids().to_vec();
        assert_eq!(ids.iter().filter(|&&id| id == tokens.end).count(), 1);
        assert_eq!(ids[0], tokens.end);
        assert_eq!(tokens.inner.decode(&ids, true).unwrap(), text);
    }

    fn learn() -> Tokens {
        Tokens::learn(TEXTS.into_iter(), 300, true).unwrap()
    }

    #[test]
    fn documents_are_kept_apart() {
        let tokens = Tokens::learn(TEXTS.into_iter(), 280, false).unwrap();
        let stream = tokens.stream(&["the cat".into(), "a dog".into()]).unwrap();
        let ends: Vec<usize> = (0..stream.len()).filter(|&i| stream[i] == tokens.end).collect();
        assert_eq!((ends.len(), ends[0]), (2, 0));
        assert!(tokens.inner.encode("the cat", true).unwrap().get_ids().iter().all(|&id| id != tokens.end));
    }
}
