//! How the paper prints the backbones of its tables.

const LABELS: [(&str, &str); 6] = [
    ("llama-3-8b", "LLaMA-3-8B"),
    ("llama-3.1-8b", "LLaMA-3.1-8B"),
    ("deepseek-r1-distill-llama-8b", "DeepSeek-R1-Distill-LLaMA-8B"),
    ("olmo-2-7b", "OLMo-2-7B"),
    ("llama-2-7b", "LLaMA-2-7B"),
    ("qwen-3-14b", "Qwen-3-14B"),
];

/// A backbone as the paper prints it; others keep the grid's name.
pub fn backbone_label(name: &str) -> &str {
    LABELS.iter().find(|(known, _)| *known == name).map_or(name, |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_backbone_of_the_tables_has_a_label_and_there_are_no_others() {
        let shown: BTreeSet<String> =
            super::super::all().unwrap().into_iter().map(|number| number.record.condition.backbone).collect();
        assert_eq!(shown, LABELS.iter().map(|(name, _)| (*name).to_owned()).collect());
        assert_eq!((backbone_label("qwen-3-14b"), backbone_label("tiny-llama")), ("Qwen-3-14B", "tiny-llama"));
    }
}
