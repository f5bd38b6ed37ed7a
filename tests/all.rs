//! All tests of the program in one program: its libraries are linked once, and long tests of one file run next to those
//! of another. `cargo test --release --test all latency::` runs those of `latency.rs`.

mod choices;
mod cli;
mod common;
mod docs;
mod export;
mod exported;
mod faults;
mod finetune;
mod floors;
mod generations;
mod golden;
mod half;
mod hostile;
mod hub;
mod identity;
mod init;
mod json;
mod keys;
mod latency;
mod llama_cpp;
mod lm_eval;
mod memory;
mod methods;
mod model_files;
mod new;
mod outputs;
mod page;
mod python;
mod quota;
mod real;
mod reproduce;
mod resume;
mod search;
#[path = "../crates/hub/tests/common/mod.rs"]
mod server;
mod shell;
mod slurm;
mod store;
mod submit;
mod tasks;
mod tiny;
mod untrusted;
mod verify;
mod views;
mod worker;
