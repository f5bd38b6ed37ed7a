//! Computes the perplexity of a backbone on a text:
//! `cargo run --release -p ghostlab-core --example perplexity -- FOLDER TEXT`.
#![allow(clippy::disallowed_macros, reason = "an example prints")]

use std::path::Path;

use ghostlab_core::corpus::{Tokenizer, WindowRule, evaluation_windows, read_rows};
use ghostlab_core::error::{Error, Result};
use ghostlab_core::evaluate::perplexity;
use ghostlab_core::model::{Decoder, Program};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, text] = arguments.as_slice() else {
        return Err(Error::bad_input("expected two arguments: a backbone folder and a text file"));
    };
    let folder = Path::new(folder);
    let decoder = Decoder::load(folder)?;
    let tokenizer = Tokenizer::load(folder.join("tokenizer.json"))?;
    let windows = evaluation_windows(WindowRule::Wikitext2, &read_rows(text, None)?, &tokenizer, 256, Some(32))?;
    let dense = Program::dense(decoder.config().layers);
    let perplexities = perplexity::of(&decoder, &[dense], &windows)?;
    println!("{} windows of 256 tokens: perplexity {:.3}", windows.count(), perplexities[0]);
    Ok(())
}
