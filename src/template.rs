//! Text templates (layer 0 of the architecture).

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior, Value};

use crate::error::{Error, Result};

/// Renders a template. Lines that contain only block tags produce no output. A misspelled name is an error.
///
/// # Errors
/// Fails if the template is invalid or uses an unknown name. Either one is a bug. The message is "cannot write {what}".
pub fn render(what: &str, template: &str, values: impl Into<Value>) -> Result<String> {
    fill(template, values.into())
        .map_err(|error| Error::job(format!("cannot write {what}")).found(format!("{error:#}")))
}

fn fill(template: &str, values: Value) -> Result<String, minijinja::Error> {
    let mut templates = Environment::new();
    templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    templates.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    templates.template_from_str(template)?.render(values)
}
