//! Parser of the section that an export adds to its config, and reader of the operators. The section lists the
//! operators that the checkpoint contains and the sublayers that were removed. [`crate::checkpoint`] writes such
//! exports.

use std::sync::Arc;

use serde_json::Value;

use super::architecture::Architecture;
use super::attached_form::{
    AttachedForm, Attachment, BranchPlace, CONFIG_KEY, DROPPED_KEY, OPERATORS_KEY, bias_name, input_norm_name,
};
use super::config_fields::Entries;
use super::cut::Cut;
use super::operator::Operator;
use super::rms_norm::RmsNorm;
use super::tensor_name::name;
use super::weights::Weights;
use crate::error::Result;

impl Attachment {
    /// Reads the operator for a backbone with `hidden` channels and norm epsilon `eps`.
    pub(super) fn read_operator(self, hidden: usize, eps: f32, weights: &Weights) -> Result<Arc<Operator>> {
        let c = hidden;
        let module = self.place.module();
        let name = name(self.layer, &module);
        let bias = self.bias.then(|| weights.take(&bias_name(self.layer, &module), &[c])).transpose()?;
        // Matrices are stored as Wᵀ, like the weights in linear layers.
        match (self.form, bias) {
            (AttachedForm::Diagonal, _) => Operator::diagonal(weights.take(&name, &[c])?),
            (AttachedForm::Bias, bias) => Operator::bias_only(bias.unwrap_or_else(|| vec![0.0; c])),
            (AttachedForm::Dense, Some(bias)) => Operator::affine(c, weights.read_transposed(&[(name, c)], c)?, bias),
            (AttachedForm::Dense, None) => Operator::dense(c, weights.read_transposed(&[(name, c)], c)?),
            (AttachedForm::Normed { weighted }, bias) => {
                let norm_name = input_norm_name(self.layer, &module);
                let weight = weighted.then(|| weights.take(&norm_name, &[c])).transpose()?;
                Operator::normed(RmsNorm { eps, weight }, c, weights.read_transposed(&[(name, c)], c)?, bias)
            }
        }
    }
}

/// Parsed config section that describes an export.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ExportEntries {
    pub(super) attachments: Vec<Attachment>,
    pub(super) dropped: Cut,
}

/// Parses the config section that describes an export with `layers` layers.
pub(super) fn parse_export_entries(
    entries: &Entries<'_>,
    architecture: &Architecture,
    layers: usize,
) -> Result<ExportEntries> {
    let section = entries
        .map_at(CONFIG_KEY)?
        .ok_or_else(|| entries.value_error(CONFIG_KEY, "a map with `operators` or `dropped`"))?;
    let dropped = parse_dropped_sublayers(&section, layers)?;
    let attachments = parse_operators(&section, architecture, layers)?;
    if attachments.is_empty() && dropped.is_empty() {
        return Err(section.value_error(OPERATORS_KEY, EXPECTED_OPERATORS));
    }
    Ok(ExportEntries { attachments, dropped })
}

/// Parses the list of sublayers that are missing from an export.
fn parse_dropped_sublayers(section: &Entries<'_>, layers: usize) -> Result<Cut> {
    let Some(value) = section.get(DROPPED_KEY) else { return Ok(Cut::default()) };
    let cut = serde_json::from_value::<Cut>(value.clone()).ok();
    let cut = cut.filter(|cut| cut.iter().all(|(layer, _)| layer < layers));
    cut.ok_or_else(|| {
        section.value_error(DROPPED_KEY, "a list of sublayers of existing layers, such as `attention 3` or `mlp 3`")
    })
}

/// Description of a valid operator list for error messages.
const EXPECTED_OPERATORS: &str =
    "a list of operators, each with `layer`, a valid position `at`, a `form` allowed there, and `bias`";

/// Parses the operators listed in a config.
fn parse_operators(section: &Entries<'_>, architecture: &Architecture, layers: usize) -> Result<Vec<Attachment>> {
    let error = || section.value_error(OPERATORS_KEY, EXPECTED_OPERATORS);
    let mut attachments: Vec<Attachment> = Vec::new();
    for value in section.get(OPERATORS_KEY).and_then(Value::as_array).ok_or_else(error)? {
        let layer = value.get("layer").and_then(Value::as_u64).and_then(|layer| usize::try_from(layer).ok());
        let layer = layer.filter(|&layer| layer < layers).ok_or_else(error)?;
        let branch = BranchPlace::all(architecture)
            .find(|branch| read_text("at", value) == Some(branch.name()))
            .ok_or_else(error)?;
        let bias = value.get("bias").and_then(Value::as_bool).ok_or_else(error)?;
        let form = AttachedForm::ALL.into_iter().find(|form| read_text("form", value) == Some(form.name()));
        let form = form.filter(|form| form.is_allowed_at(branch, bias)).ok_or_else(error)?;
        if attachments.iter().any(|attachment| (attachment.layer, attachment.place) == (layer, branch)) {
            return Err(error());
        }
        attachments.push(Attachment { layer, place: branch, form, bias });
    }
    Ok(attachments)
}

fn read_text<'a>(key: &str, value: &'a Value) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}
