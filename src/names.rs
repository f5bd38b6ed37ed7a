//! How backbones and methods are called in print: the paper's words, wherever a person reads them.

/// A recovery as the paper prints it.
pub fn recovery(name: &str) -> String {
    let (name, option) = name.split_once(':').unwrap_or((name, ""));
    let known = [
        ("none", "Pruned"),
        ("prune-and-comp", "Prune and Comp"),
        ("replaceme-ls", "ReplaceMe (LS)"),
        ("replaceme-cos", "ReplaceMe (Cos)"),
        ("linearpatch-diag", "Linear Patch (Diag)"),
        ("linearpatch-rotate", "Linear Patch (Rotate)"),
        ("ghosted", "Ghost Layer (Ours)"),
    ];
    match option {
        "svd" => return "SVD-based".to_owned(),
        "solve" => return "Solver-based".to_owned(),
        _ => {}
    }
    found(&known, name)
}

/// A criterion as the paper prints it.
pub fn criterion(name: &str) -> String {
    let known = [
        ("dense", "Dense"),
        ("llm-streamline", "LLM-Streamline"),
        ("shortgpt", "ShortGPT"),
        ("shortened-llama", "Shortened LLaMA"),
        ("sleb", "SLEB"),
    ];
    found(&known, name)
}

/// A backbone as the paper prints it; others keep the grid's name.
pub fn backbone(name: &str) -> String {
    let known = [
        ("llama-3-8b", "LLaMA-3-8B"),
        ("llama-3.1-8b", "LLaMA-3.1-8B"),
        ("deepseek-r1-distill-llama-8b", "DeepSeek-R1-Distill-LLaMA-8B"),
        ("olmo-2-7b", "OLMo-2-7B"),
        ("llama-2-7b", "LLaMA-2-7B"),
        ("qwen-3-14b", "Qwen-3-14B"),
    ];
    found(&known, name)
}

fn found(known: &[(&str, &str)], name: &str) -> String {
    let print = known.iter().find(|(word, _)| *word == name).map(|(_, print)| *print);
    print.unwrap_or(name).to_owned()
}
