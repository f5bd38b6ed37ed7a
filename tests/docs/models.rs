//! Generates the tables in docs/models.md from the registries of architectures and recoveries (`just docs`), and checks
//! that they are up to date. tests/exported.rs checks the statements about exports by comparing logits with
//! transformers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ghostlab::model::architecture::{
    ARCHITECTURES, Activation, Architecture, AttentionBias, QueryKeyNorm, RopeEntries, SlidingWindow,
};
use ghostlab::options::Options;
use ghostlab::recovery::{self, RepairTarget};

const BEGIN: &str = "<!-- Made by `just docs` from the registries. -->\n";
const END: &str = "<!-- Until here. -->\n";

/// Returns the table entry that describes how repairs at this position are exported.
fn describe_export(position: RepairTarget) -> &'static str {
    match position {
        RepairTarget::Nothing => "plain",
        RepairTarget::Rows => "in `o_proj` and `down_proj`",
        RepairTarget::Layer => "plain, merged weights",
        RepairTarget::Branch => "in `down_proj`, or as in the table above",
        RepairTarget::Stream => "an f32 operator of the residual stream, next to the weights",
    }
}

/// Returns the table entry that describes how a repair of an MLP branch is exported.
fn describe_branch_export(architecture: &Architecture) -> &'static str {
    if architecture.norms[3].is_some() {
        "after the norm"
    } else if architecture.experts.is_some() {
        "in each expert"
    } else {
        "in weights"
    }
}

/// Groups the recoveries by the position in the model at which they apply their repair.
fn group_recoveries() -> BTreeMap<RepairTarget, Vec<String>> {
    let mut places: BTreeMap<RepairTarget, Vec<String>> = BTreeMap::new();
    for method in recovery::descriptions() {
        let position = recovery::build(&method.name, &Options::new()).unwrap().target();
        places.entry(position).or_default().push(format!("`{}`", method.name));
    }
    places
}

fn format_recoveries() -> String {
    let mut table = "| recovery | export |\n| --- | --- |\n".to_owned();
    for (position, names) in group_recoveries() {
        let _ = writeln!(table, "| {} | {} |", names.join(", "), describe_export(position));
    }
    table
}

/// Lists the properties in which an architecture differs from Llama.
fn special_properties(architecture: &Architecture) -> Vec<String> {
    let mut table: Vec<String> = Vec::new();
    if architecture.norms.iter().flatten().count() == 4 {
        table.push("norms before and after sublayers".into());
    } else if architecture.norms[0].is_none() {
        table.push("norms only after sublayers".into());
    }
    if architecture.norms_add_one {
        table.push("norm weights `1 + w`".into());
    }
    match architecture.query_key_norm {
        QueryKeyNorm::None => (),
        QueryKeyNorm::PerHead => table.push("QK norm per head".into()),
        QueryKeyNorm::WholeProjection => table.push("QK norm over all heads".into()),
    }
    match architecture.attention_bias {
        AttentionBias::Never => table.push("no biases".into()),
        AttentionBias::Inputs => table.push("QKV biases".into()),
        AttentionBias::Configurable => {
            let keys = if architecture.mlp_bias { "`attention_bias`, `mlp_bias`" } else { "`attention_bias`" };
            table.push(keys.into());
        }
    }
    match architecture.window {
        SlidingWindow::Never => (),
        SlidingWindow::Always => table.push("window in all layers or none".into()),
        SlidingWindow::Switched => table.push("windows by `max_window_layers` or `layer_types`".into()),
        SlidingWindow::SwitchedWhole => table.push("window in all layers if enabled".into()),
        SlidingWindow::Patterned { .. } => table.push("windows by `layer_types` or in all but every n-th layer".into()),
        SlidingWindow::Unrotated => table.push("windows by `layer_types` or in layers without RoPE".into()),
    }
    match architecture.rope {
        RopeEntries::One => (),
        RopeEntries::SomeLayers => table.push("layers without RoPE".into()),
        RopeEntries::Partial => table.push("partial RoPE of type `default` or `longrope`".into()),
        RopeEntries::ByWindow => table.push("another RoPE in layers with a window".into()),
    }
    if architecture.activation.1 == Activation::Gelu {
        table.push("tanh GELU".into());
    }
    if architecture.fused {
        table.push("fused projections".into());
    }
    if architecture.scaled_embedding {
        table.push("embeddings scaled by √C in their stored type".into());
    }
    table.extend(architecture.scale.map(|key| format!("attention scale `{key}`")));
    table.extend(architecture.caps.iter().flatten().map(|key| format!("`{key}`")));
    table.extend(architecture.experts.map(|experts| {
        format!(
            "experts of width `{}`{}",
            experts.width,
            experts.normalized.map_or(String::new(), |key| format!(", `{key}`"))
        )
    }));
    table
}

fn format_architectures() -> String {
    let mut table = "| architecture | class | ReplaceMe | GGUF | properties |\n".to_owned();
    table += "| --- | --- | --- | --- | --- |\n";
    for architecture in ARCHITECTURES {
        let gguf = if architecture.gguf.is_some() { "in, out" } else { "no" };
        let _ = writeln!(
            table,
            "| `{}` | `{}` | {} | {gguf} | {} |",
            architecture.model_type,
            architecture.class,
            describe_branch_export(architecture),
            special_properties(architecture).join("; ")
        );
    }
    table
}

fn replace_tables(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    for table in [format_architectures(), format_recoveries()] {
        let (before, after) = rest.split_once(BEGIN).unwrap();
        let (_, after) = after.split_once(END).unwrap();
        let _ = write!(out, "{before}{BEGIN}\n{table}\n{END}");
        rest = after;
    }
    out + rest
}

#[test]
fn models_page_matches_the_registries() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/models.md");
    let text = fs::read_to_string(&file).unwrap();
    let expected = replace_tables(&text);
    if std::env::var("GHOSTLAB_DOCS").is_ok_and(|value| value == "write") {
        fs::write(&file, &expected).unwrap();
        return;
    }
    assert!(text == expected, "docs/models.md is stale: run `just docs` to regenerate its tables");
}
