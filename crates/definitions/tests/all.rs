//! Tests of requests and scores, as one program.

mod harness;
mod jinja;
#[path = "../../core/tests/common/python.rs"]
mod python;
mod rows;
mod rules;
