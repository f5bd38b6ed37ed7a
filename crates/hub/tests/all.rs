mod common;
mod faults;
#[path = "common/fetching.rs"]
mod fetching;
mod hostile;
