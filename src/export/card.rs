//! Model card for an export. It describes the method, the data, the scores, and how to load the model.

use std::collections::BTreeSet;

use minijinja::context;
use minijinja::value::Serde;

use super::{ComputedCell, Exporter};
use crate::checkpoint::{AttachedOperator, Layout, gguf_form};
use crate::criterion;
use crate::error::Result;
use crate::files::sha256;
use crate::grid::Grid;
use crate::machine;
use crate::model::{BranchPlace, Cut, DeployedModel, FloatType, Step, Sublayer, describe_quantization};
use crate::pipeline::exec::CellResult;
use crate::pipeline::identity::Canonical;
use crate::recovery;
use crate::results::{WARNING, ranges, removed_text};
use crate::template;
use ghostlab_store::KeyDescription;

const TEMPLATE: &str = include_str!("card.md");

/// Renders the model card as Markdown with front matter. `numbers` is a table of the cell's scores, or `None` if it was
/// not scored.
///
/// # Errors
/// Fails if the template cannot be rendered, which indicates a bug.
pub(super) fn render_card(
    exporter: &Exporter<'_>,
    grid: &Grid,
    computed: &ComputedCell<'_>,
    numbers: Option<String>,
) -> Result<String> {
    let values = build_card_values(exporter, grid, computed, numbers);
    template::render("the model card", TEMPLATE, values).map(|card| card + "\n")
}

/// Builds the values for the card template.
fn build_card_values(
    exporter: &Exporter<'_>,
    grid: &Grid,
    computed: &ComputedCell<'_>,
    numbers: Option<String>,
) -> minijinja::Value {
    let (ComputedCell { layout, backbone, result, deployed, .. }, Exporter { weight_format, evidence, .. }) =
        (computed, exporter);
    let cell = &result.cell;
    let hub = grid.backbones.get(&cell.backbone).and_then(|entry| entry.hub.as_ref());
    let method = cell.recovery.as_ref();
    let is_fitted = method.is_some_and(|method| method.rule.is_fitted());
    let calibration = cell.calibration.as_ref().filter(|_| is_fitted);
    let corpus = cell.calibration.as_ref().and_then(|calibration| grid.corpora.get(&calibration.corpus));
    let shortage = calibration.and_then(|calibration| calibration.shortage(&cell.backbone, backbone.config.hidden));
    let shortage = shortage.map(|text| format!("{WARNING}{text}"));
    let notes = describe_quantization(&backbone.config).into_iter();
    context! {
        cell => cell.to_string(),
        backbone => cell.backbone.clone(),
        // Hub repository of the backbone, as `org/name`.
        base_model => hub.map(|hub| hub.repository.split('@').next().unwrap_or_default().to_owned()),
        base_revision => hub.and_then(|hub| hub.commit.clone().map(String::from)),
        // SHA-256 of the backbone's config and weights.
        content => backbone.dense.model.content.clone(),
        // SHA-256 of the cell's identity, which includes every setting.
        identity => result
            .identity
            .as_ref()
            .map(|identity| sha256::of_bytes(Canonical::from_value(&identity.json()).as_str())),
        class => backbone.config.architecture.class,
        kept => layout.kept.iter().collect::<BTreeSet<_>>().len(),
        // Removed layers, or removed sublayers by kind. Empty for the dense backbone.
        removed => removed_text(&result.removed),
        // Number of removed layers or sublayers, such as `8 of 32 attention sublayers`.
        amount => format_amount(&result.removed, result.layers),
        // `removed` or `replaced by an affine map`.
        verb => change_verb(result),
        // Phrases that list the checkpoint layers without attention and those without an MLP.
        without => describe_missing_sublayers(layout),
        in_gguf => gguf_form(&backbone.config, layout).is_ok(),
        criterion => cell
            .criterion
            .as_ref()
            .map(|criterion| format!("{} (`{criterion}`)", criterion::label(&criterion.name))),
        recovery_label => method.map(|method| recovery::label(&method.name).to_owned()),
        recovery_spec => method.map(ToString::to_string),
        recovery_source => method
            .and_then(|method| find_recovery_source(&method.name))
            .filter(|source| source.starts_with("http")),
        calibration => cell.calibration.as_ref().map(Serde),
        // Window rule of the calibration text, and whether the text is generated.
        rule => corpus.map_or("", |corpus| corpus.rule.as_str()),
        generated => corpus.is_some_and(|corpus| corpus.generated),
        finetune => method.and_then(|method| method.training).map(Serde),
        dtype => weight_format.dtype.map(FloatType::name),
        // Smallest sliding window of any layer, in tokens.
        window => layout.kept.iter().filter_map(|&layer| backbone.config.windows[layer]).min(),
        // One sentence for each repair that was folded into the weights.
        folded => describe_folds(layout, deployed),
        // One phrase for each attached operator, such as `a full linear map on the input of layer 3`.
        attached => layout.attached.iter().map(describe_operator).collect::<Vec<_>>(),
        notes => notes.chain(result.notes()).chain(shortage).collect::<Vec<_>>(),
        numbers,
        evidence => evidence.clone(),
        evaluated => grid.evaluate.has_scores(),
        program => machine::program_version(),
    }
}

/// Returns the source of a recovery method, such as the URL of its paper or code.
fn find_recovery_source(name: &str) -> Option<String> {
    recovery::descriptions().into_iter().find(|method| method.name == name).map(|method| method.source.to_owned())
}

fn describe_folds(layout: &Layout, deployed: &DeployedModel) -> Vec<String> {
    let folds = deployed.folds.iter().filter_map(|((layer, sublayer), operator)| {
        let index = layout.kept.iter().position(|kept| kept == layer)?;
        let weight = match sublayer {
            Sublayer::Attention => "self_attn.o_proj",
            Sublayer::Mlp => "mlp.down_proj",
        };
        let what = match (operator.factor().ok().flatten(), operator.is_diagonal()) {
            (Some(factor), _) => format!("a factor of {factor} for all output channels"),
            (None, true) => "a factor for each output channel".to_owned(),
            (None, false) => "a linear map of the output".to_owned(),
        };
        Some(format!("`model.layers.{index}.{weight}` (layer {layer} of the backbone) includes {what}."))
    });
    folds.chain(describe_merged_layers(layout, deployed)).collect()
}

/// Describes each checkpoint layer that was merged from several layers of the backbone.
fn describe_merged_layers(layout: &Layout, deployed: &DeployedModel) -> impl Iterator<Item = String> {
    deployed.program.0.iter().filter_map(|step| {
        let Step::Merged(Sublayer::Attention, merged) = step else { return None };
        let layer = merged.layer();
        let index = layout.kept.iter().position(|&kept| kept == layer)?;
        let terms: Vec<String> =
            merged.factors().map(|(source, factor)| format!("{factor} × layer {source}")).collect();
        let norms = if merged.has_merged_norms() { "weights and norms" } else { "weights (its norms are kept)" };
        Some(format!(
            "`model.layers.{index}` (layer {layer} of the backbone) has merged {norms}: {}.",
            terms.join(" + ")
        ))
    })
}

/// Formats how many of the `layers` layers of a backbone, or of its sublayers, are removed.
fn format_amount(removed: &Cut, layers: usize) -> String {
    if removed.has_only_whole_layers() {
        return format!("{} of {layers} layers", removed.whole_layers().len());
    }
    let count = removed.len();
    match Sublayer::ALL.into_iter().find(|&kind| removed.iter().all(|(_, found)| found == kind)) {
        Some(Sublayer::Attention) => format!("{count} of {layers} attention sublayers"),
        Some(Sublayer::Mlp) => format!("{count} of {layers} MLP sublayers"),
        None => format!("{count} of {} sublayers", 2 * layers),
    }
}

/// Returns `replaced by an affine map` if every removed sublayer was replaced, and `removed` otherwise.
fn change_verb(result: &CellResult) -> &'static str {
    let replaced = result.replaced_sublayers();
    if !replaced.is_empty() && replaced == result.removed { "replaced by an affine map" } else { "removed" }
}

/// Describes which layers of the checkpoint lack a sublayer. Returns one phrase per kind of sublayer.
fn describe_missing_sublayers(layout: &Layout) -> Vec<String> {
    let kinds = [(Sublayer::Attention, "attention"), (Sublayer::Mlp, "MLP")];
    let listed = kinds.into_iter().filter_map(|(kind, name)| {
        let layers: Vec<usize> = layout.dropped.iter().filter(|(_, found)| *found == kind).map(|(at, _)| at).collect();
        (!layers.is_empty()).then(|| format!("no {name} in layers {}", ranges(&layers, "-", ", ")))
    });
    listed.collect()
}

fn describe_operator(attached: &AttachedOperator) -> String {
    let AttachedOperator { layer, place, operator } = attached;
    let position = match place {
        BranchPlace::Before => format!("on the input of layer {layer}"),
        BranchPlace::After => format!("on the output of layer {layer}, the last layer"),
        BranchPlace::Norm(norm) => format!("after `{norm}` of layer {layer}"),
    };
    let bias = if operator.has_bias() { " with a bias" } else { "" };
    if operator.is_bias_only() {
        return format!("a constant added {position}");
    }
    if operator.is_normed() {
        return format!("a full linear map{bias} of the normalized residual stream, added {position}");
    }
    let form = if operator.is_diagonal() { "diagonal" } else { "full" };
    format!("a {form} linear map{bias} {position}")
}
