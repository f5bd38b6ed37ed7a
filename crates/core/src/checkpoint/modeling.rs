//! The Python file beside a checkpoint whose operators no weight takes in.

use crate::model::architecture::{self, Architecture};

/// What it is called in the checkpoint's folder.
pub const MODELING: &str = "modeling_ghostlab.py";
/// For every architecture alike: only the names of transformers' own classes differ.
const TEMPLATE: &str = include_str!("modeling.py");

/// The file for an architecture.
pub fn modeling(architecture: &Architecture) -> String {
    let (inner, folder) = architecture.python;
    let names = [
        ("BACKBONE", prefix(architecture)),
        ("INNER", inner),
        ("FOLDER", folder),
        ("MODEL_TYPE", architecture.model_type),
    ];
    names.into_iter().fold(TEMPLATE.to_owned(), |text, (name, of)| text.replace(name, of))
}

/// The file's class in the place of one of transformers'.
pub(super) fn class(architecture: &Architecture, suffix: &str) -> String {
    format!("{}{}{suffix}", architecture::CLASS, prefix(architecture))
}

/// The model type of those classes.
pub(super) fn model_type(architecture: &Architecture) -> String {
    format!("{}{}", architecture::MODEL_TYPE, architecture.model_type)
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
            let left = ["BACKBONE", "INNER", "FOLDER", "MODEL_TYPE"].iter().find(|name| text.contains(**name));
            assert_eq!(left, None, "{}", architecture.class);
            for suffix in ["Config", "Model", "ForCausalLM"] {
                assert!(text.contains(&format!("class {}(", class(architecture, suffix))), "{suffix}");
            }
            assert!(text.contains(&format!("model_type = \"{}\"", model_type(architecture))));
        }
    }
}
