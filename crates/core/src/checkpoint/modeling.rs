//! The Python file beside a checkpoint whose operators no weight takes in.

use crate::model::architecture::{self, Architecture};

/// What it is called in the checkpoint's folder.
pub const MODELING: &str = "modeling_ghostlab.py";
/// For every architecture alike: only the names of transformers' own classes differ.
const TEMPLATE: &str = include_str!("modeling.py");

/// In the place of the activation in `config.json`: what does not run the file cannot take the weights for the whole model.
pub(super) const GUARD: &str = "load this model with trust_remote_code=True: modeling_ghostlab.py applies linear maps that stand beside its weights";

/// The file for an architecture.
pub fn modeling(architecture: &Architecture) -> String {
    let (inner, folder) = architecture.python;
    let names = [
        ("GUARD", GUARD),
        ("ACTIVATION", architecture.activation.0),
        ("BACKBONE", prefix(architecture)),
        ("INNER", inner),
        ("FOLDER", folder),
    ];
    names.into_iter().fold(TEMPLATE.to_owned(), |text, (name, of)| text.replace(name, of))
}

/// The file's class in the place of one of transformers'.
pub(super) fn class(architecture: &Architecture, suffix: &str) -> String {
    format!("{}{}{suffix}", architecture::CLASS, prefix(architecture))
}

/// What the names of transformers' classes begin with.
fn prefix(architecture: &Architecture) -> &'static str {
    architecture.class.trim_end_matches("ForCausalLM")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::architecture::ARCHITECTURES;

    #[test]
    fn each_architecture_has_its_own_classes() {
        for architecture in ARCHITECTURES {
            let text = modeling(architecture);
            let left = ["BACKBONE", "INNER", "FOLDER", "GUARD", "ACTIVATION"].iter().find(|name| text.contains(**name));
            assert_eq!(left, None, "{}", architecture.class);
            for suffix in ["Config", "Model", "ForCausalLM"] {
                assert!(text.contains(&format!("class {}(", class(architecture, suffix))), "{suffix}");
            }
        }
    }
}
