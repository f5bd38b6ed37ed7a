mod harness;
mod jinja;
#[path = "../../core/tests/common/python.rs"]
mod python;
mod rows;
mod rules;
