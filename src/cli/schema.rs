//! `ghostlab schema`.

use std::process::ExitCode;

use crate::error::{Error, Result};
use crate::exec::Methods;
use crate::grid;

pub(super) fn run() -> Result<ExitCode> {
    let schema = serde_json::to_string_pretty(&grid::json_schema(&Methods))
        .map_err(|error| Error::job("the schema has no JSON form").found(error.to_string()))?;
    println!("{schema}");
    Ok(ExitCode::SUCCESS)
}
