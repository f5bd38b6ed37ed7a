//! Removes three layers and repairs the cut with `ghosted`:
//! `cargo run --release -p ghostlab-core --example repair -- FOLDER CALIBRATION TEXT`.
#![allow(clippy::disallowed_macros, reason = "an example prints")]

use std::path::Path;

use ghostlab_core::calibrate::{self, HookPoint};
use ghostlab_core::corpus::{Tokenizer, WindowRule, calibration_windows, evaluation_windows, read_rows};
use ghostlab_core::error::{Error, Result};
use ghostlab_core::evaluate::perplexity;
use ghostlab_core::model::{Decoder, Program};
use ghostlab_core::recovery::{self, Boundary, Span};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, train, text] = arguments.as_slice() else {
        return Err(Error::bad_input(
            "expected three arguments: a backbone folder, a calibration text and an evaluation text",
        ));
    };
    let decoder = Decoder::load(Path::new(folder))?;
    let tokenizer = Tokenizer::load(Path::new(folder).join("tokenizer.json"))?;
    let layers = decoder.config().layers;
    let span = Span::layers(8, 11);

    // Collect the dense model's residual stream on both sides of the cut, in memory.
    let sequences = calibration_windows(WindowRule::C4, &read_rows(train, None)?, &tokenizer, 32, 256, 0)?;
    let activations =
        calibrate::in_memory(&decoder, &sequences, [HookPoint::Stream(span.start), HookPoint::Stream(span.end)])?;
    let boundary = Boundary::new(&decoder, &activations, span, 32);
    let solution = recovery::build("ghosted", &Default::default())?.solve(&boundary)?;

    let removed: Vec<usize> = (span.start..span.end).collect();
    let cut = Program::pruned(layers, &removed, |_| None);
    let repaired = Program::pruned(layers, &removed, |_| solution.repair.operator().cloned());
    let windows = evaluation_windows(WindowRule::Wikitext2, &read_rows(text, None)?, &tokenizer, 256, Some(32))?;
    let scored = perplexity::of(&decoder, &[Program::dense(layers), cut, repaired], &windows)?;
    println!("perplexity: dense {:.3}, cut {:.3}, repaired {:.3}", scored[0], scored[1], scored[2]);
    Ok(())
}
