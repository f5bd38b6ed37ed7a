//! Tests of requests and scores, as one program.

mod harness;
#[path = "../../core/tests/common/python.rs"]
mod python;
mod rules;
