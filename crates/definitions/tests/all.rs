//! What definitions ask and how they score, as one program.

mod harness;
#[path = "../../core/tests/common/python.rs"]
mod python;
mod rules;
