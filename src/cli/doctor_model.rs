//! `ghostlab doctor MODEL`: reports a model's architecture and memory requirements, and which criteria, recoveries and
//! exports support it.

use std::path::Path;

use super::answer::read_commands::{CheckItem, CheckStatus};
use super::terminal::format_bytes;
use crate::checkpoint::{GgufType, Layout, gguf_form};
use crate::corpus::Tokenizer;
use crate::criterion::{self, DepthUnit, PruneSpec};
use crate::error::{Error, Result};
use crate::export::{ExportableCut, Formats, exportable_cuts, gguf_texts};
use crate::files::parts;
use crate::model::architecture::QueryKeyNorm;
use crate::model::{
    Batch, CandleReference, Config, Cut, DeviceName, EngineChoice, FloatType, HostRows, Observer, Placement, Products,
    Program, ResidualStream, Step, Sublayer, Trie, check_weights, deploy, folder_program,
};
use crate::options::Options;
use crate::results::group_by_key;
use crate::{machine, recovery};

/// Number of tokens that `--check` uses, unless a sliding window is smaller.
const CHECK_TOKENS: usize = 64;
/// Maximum relative Frobenius error between the f32 logits of two engines. The tests that compare each engine with
/// transformers and candle's models use a tenth of this bound.
const MAX_LOGIT_ERROR: f64 = 1e-4;
/// Label for the comparison with candle-transformers.
const CANDLE_CHECK_LABEL: &str = "check, candle-transformers";

/// Describes a model with one line per property. If `check` is set, also compares the logits of the engines.
///
/// # Errors
/// Fails if the folder does not contain a valid model, or if the model needs an unsupported feature.
pub(super) fn check_model(model: &Path, check: bool) -> Result<Vec<CheckItem>> {
    let config = Config::read_with_attachments(model)?;
    check_weights(&config, model)?;
    let dense = deploy(&Program::without(config.layers, &config.dropped), &config);
    let layout = Layout::plan(&config, model, &dense, None)?;
    let mut lines = vec![
        CheckItem::ok("architecture", format_shape(&config)),
        CheckItem::ok("attention", format_attention(&config)),
    ];
    let millions = layout.parameters() as f64 / 1e6;
    let stored = FloatType::stored_in(model)?.name();
    lines.push(CheckItem::ok("parameters", format!("{millions:.1} M, stored as {stored}")));
    lines.extend(config.notes.iter().map(|note| CheckItem::note("config", note.clone(), "")));
    lines.push(CheckItem::ok("memory needed", format_memory(&config)));
    lines.push(CheckItem::ok("KV cache", format_kv_cache(&config, &dense.program)));
    if check {
        lines.extend(check_logits(&config, model).unwrap_or_else(|error| vec![CheckItem::missing("check", &error)]));
    }
    lines.push(match Tokenizer::load(parts::tokenizer_path(model)) {
        Ok(tokenizer) => CheckItem::ok("tokenizer", format!("{} token ids", tokenizer.vocab_size())),
        Err(error) => CheckItem::missing("tokenizer", &error),
    });
    if !config.is_plain() {
        let found = format!("{}: can be scored, but not pruned", config.export_text());
        let what = if config.attachments.is_empty() { "sublayers" } else { "operators" };
        lines.push(CheckItem::note(what, found, "prune the model that it was exported from"));
        return Ok(lines);
    }
    let none = Options::new();
    for method in criterion::descriptions() {
        let fits = criterion::build(&method.name, &none).and_then(|rule| {
            let unit = rule.units().first().copied().unwrap_or_default();
            rule.check_backbone(&config)?;
            rule.check(&method.name, &PruneSpec { backbone: "model", layers: config.layers, depth: 1, unit })
        });
        lines.push(CheckItem::from_result(format!("criterion {}", method.name), fits.map(|()| "applies".to_owned())));
    }
    for method in recovery::descriptions() {
        let fits = recovery::build(&method.name, &none).and_then(|rule| rule.check(&config));
        lines.push(CheckItem::from_result(format!("recovery {}", method.name), fits.map(|()| "applies".to_owned())));
    }
    if config.ends_in_norm(Sublayer::Mlp) {
        let found = "the MLP ends in a norm: ReplaceMe's map comes after the norm and cannot be folded into a weight";
        lines.push(CheckItem::note("folding", found, ""));
    }
    lines.extend(check_exports(&config, &layout, model)?);
    Ok(lines)
}

/// Lists the cuts and recoveries that each export format supports.
fn check_exports(config: &Config, layout: &Layout, model: &Path) -> Result<Vec<CheckItem>> {
    let cuts = exportable_cuts(config);
    let mut items = vec![
        CheckItem::ok("export to a folder", list_cuts(&cuts, |formats| !formats.needs_code)),
        CheckItem::ok("export to a folder with a code file", list_cuts(&cuts, |formats| formats.needs_code)),
    ];
    let without_attention = Program::without(config.layers, &Cut::sublayers([(0, Sublayer::Attention)]));
    let sublayer_layout = Layout::plan(config, model, &deploy(&without_attention, config), None)?;
    let texts = gguf_texts(model, config);
    for (what, layout) in [("export --gguf", layout), ("export --gguf, as `deci`", &sublayer_layout)] {
        let needs_deci = layout.needs_modeling_file();
        let cells = list_cuts(&cuts, |formats| formats.fits_gguf && formats.needs_code == needs_deci);
        items.push(match (gguf_form(config, layout), &texts) {
            (Err(error), _) => CheckItem::from_result(what, Err(error)),
            (Ok(_), Err(error)) => CheckItem::note(what, error.one_line(), error.advice().unwrap_or_default()),
            (Ok(_), Ok((_, notes))) => {
                let types = GgufType::ALL.map(GgufType::name).join(", ");
                CheckItem::new(CheckStatus::Good, what, format!("{types}; {cells}"), notes.join("\n"))
            }
        });
    }
    Ok(items)
}

/// Formats the cuts and recoveries that a format supports, such as `` whole layers removed with `none`, `merge` ``.
fn list_cuts(cuts: &[ExportableCut], is_supported: impl Fn(&Formats) -> bool) -> String {
    let supported = cuts.iter().filter(|cut| is_supported(&cut.formats));
    let by_unit = group_by_key(supported.map(|cut| (cut.unit, cut.recovery.as_str())));
    let groups = by_unit.into_iter().map(|(unit, recoveries)| {
        let removed = match unit {
            DepthUnit::Layers => "whole layers",
            DepthUnit::Attention => "attention sublayers",
            DepthUnit::Mlp => "MLP sublayers",
            DepthUnit::Sublayers => "attention or MLP sublayers",
        };
        format!("{removed} removed with {}", recoveries.join(", "))
    });
    groups.collect::<Vec<_>>().join("; ")
}

/// Compares the logits of the built-in kernels with those of the candle engine and of the model in candle-transformers.
fn check_logits(config: &Config, model: &Path) -> Result<Vec<CheckItem>> {
    let program = folder_program(config, model)?;
    // Stay within the sliding window, because candle-transformers makes the window one token wider or ignores it.
    let length = config.windows.iter().flatten().min().map_or(CHECK_TOKENS, |&width| CHECK_TOKENS.min(width));
    let ids: Vec<u32> =
        (0..length).map(|i| u32::try_from((i * i * 7919 + i * 31 + 3) % config.vocab).unwrap_or_default()).collect();
    let candle = EngineChoice::Candle(Placement { device: DeviceName::Cpu, dtype: FloatType::F32 });
    let [ours, theirs] =
        [EngineChoice::Cpu(Products::F32), candle].map(|engine| compute_logits(engine, config, model, &program, &ids));
    let ours = ours?;
    let mut lines =
        vec![compare_logits("check, engines", &format!("logits of {length} tokens in both engines"), &ours, &theirs?)];
    let free = machine::free_memory();
    lines.push(if EngineChoice::Cpu(Products::F32).weight_bytes(config) > free {
        CheckItem::note(CANDLE_CHECK_LABEL, "not enough memory for the check", "")
    } else {
        match CandleReference::load(config, model).and_then(|model| model.logits(&ids)) {
            Ok(theirs) => {
                let last = &ours[ours.len() - config.vocab..];
                compare_logits(CANDLE_CHECK_LABEL, "logits of the last token in candle-transformers", last, &theirs)
            }
            Err(error) => CheckItem::from_result(CANDLE_CHECK_LABEL, Err(error)),
        }
    });
    Ok(lines)
}

/// Compares two logit vectors by the relative norm of their difference.
fn compare_logits(what: &str, description: &str, ours: &[f32], theirs: &[f32]) -> CheckItem {
    let difference = vector_norm(&mut ours.iter().zip(theirs).map(|(&a, &b)| f64::from(a) - f64::from(b)));
    let relative_error = difference / vector_norm(&mut theirs.iter().map(|&logit| logit.into()));
    let found = format!("{description} in f32: relative difference {relative_error:.1e} (‖a − b‖ / ‖b‖)");
    match ours.len() == theirs.len() && relative_error <= MAX_LOGIT_ERROR {
        true => CheckItem::ok(what, found),
        false => CheckItem::new(
            CheckStatus::Missing,
            what,
            found,
            format!("report this difference as a bug; it should be at most {MAX_LOGIT_ERROR:e}"),
        ),
    }
}

fn vector_norm(values: &mut dyn Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

/// Observer that stores the residual stream after the last step.
struct LastStream(Option<HostRows>);

impl Observer<dyn ResidualStream> for LastStream {
    fn after_step(&mut self, _: usize, state: Option<&dyn ResidualStream>, _: f64) -> Result<()> {
        self.0 = state.map(ResidualStream::rows).transpose()?;
        Ok(())
    }
}

/// Computes the logits for every token, as `[tokens, vocab]`.
fn compute_logits(
    choice: EngineChoice,
    config: &Config,
    model: &Path,
    program: &Program,
    ids: &[u32],
) -> Result<Vec<f32>> {
    let memory = choice.held_bytes(config, machine::free_memory() / 5 * 4);
    let engine = choice.load(config.clone(), model, memory, None)?;
    let steps = program.0.iter().filter(|step| !matches!(step, Step::Head)).cloned().collect();
    let mut last = LastStream(None);
    engine.run(&Trie::new(&[Program(steps)]), &Batch::windows([ids]), &mut last)?;
    let stream = last.0.ok_or_else(|| Error::job("a program without steps has no output"))?;
    let rows: Vec<usize> = (0..ids.len()).collect();
    Ok(engine.logits(&stream.values()?, &rows)?.values()?.to_vec())
}

fn format_shape(config: &Config) -> String {
    let Config { architecture, layers, hidden, intermediate, vocab, tied_embeddings, .. } = config;
    let head = if *tied_embeddings { "tied embeddings" } else { "untied head" };
    format!(
        "{}, {layers} layers of {hidden} channels, MLP of {intermediate}, {vocab} token ids, {head}",
        architecture.class
    )
}

fn format_attention(config: &Config) -> String {
    let Config { architecture, heads, kv_heads, head_dim, rope, biases, windows, max_positions, .. } = config;
    let mut lines = vec![format!("{heads} heads of {head_dim} channels, {kv_heads} key-value heads")];
    lines.extend(match architecture.query_key_norm {
        QueryKeyNorm::None => None,
        QueryKeyNorm::PerHead => Some("query and key norms per head".to_owned()),
        QueryKeyNorm::WholeProjection => Some("query and key norms".to_owned()),
    });
    let biased = [(biases.inputs, "queries, keys and values"), (biases.output, "the output"), (biases.mlp, "the MLP")];
    let biased: Vec<&str> = biased.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect();
    lines.extend((!biased.is_empty()).then(|| format!("biases on {}", biased.join(", "))));
    let scaled = rope.scaling.as_ref().map_or_else(String::new, |scaling| format!(", scaled ({})", scaling.name()));
    lines.push(format!("RoPE base {}{scaled}", rope.theta));
    let narrow: Vec<usize> = windows.iter().copied().flatten().collect();
    lines.push(match narrow.iter().min() {
        None => "no sliding windows".to_owned(),
        Some(width) => format!("sliding windows of {width} tokens in {} layers", narrow.len()),
    });
    lines.extend(max_positions.map(|context| format!("context of {context} tokens")));
    lines.join(", ")
}

/// Formats the size of a model's KV cache, in total and for one attention sublayer.
fn format_kv_cache(config: &Config, program: &Program) -> String {
    let one = Program(vec![Step::Sublayer(Sublayer::Attention, 0)]);
    let [all, saved] = [program, &one].map(|program| {
        let per_token = config.cache_bytes(program);
        let context = config.max_positions.map(|context| {
            format!(", {} for the context of {context} tokens", format_bytes(per_token.saturating_mul(context as u64)))
        });
        format!("{} per token{}", format_bytes(per_token), context.unwrap_or_default())
    });
    format!("{all}, in f32; removing one attention sublayer saves {saved}")
}

/// Formats the memory needed for the weights and for a batch with one window of 2048 tokens.
fn format_memory(config: &Config) -> String {
    let choices = [
        ("f32", EngineChoice::Cpu(Products::F32)),
        ("bf16", EngineChoice::Cpu(Products::Bf16)),
        ("f16", EngineChoice::Candle(Placement { device: DeviceName::Cpu, dtype: FloatType::F16 })),
    ];
    let weights = choices.map(|(name, choice)| format!("{} in {name}", format_bytes(choice.weight_bytes(config))));
    let batch = config.batch_bytes(2048, 1);
    format!("weights: {}; plus {} for a window of 2048 tokens", weights.join(", "), format_bytes(batch))
}
