//! What definitions ask and how they score, as one program.

mod harness;
mod rules;
