//! Export formats for each combination of a cut (removed layers or sublayers) and a recovery, derived from the list of
//! recoveries and the exporter's checks.

use crate::checkpoint::{check_deci_step, check_deci_support};
use crate::criterion::DepthUnit;
use crate::error::Result;
use crate::model::Config;
use crate::options::Options;
use crate::recovery::{self, Recovery};
use crate::results::settings::value_text;

/// Cut that can be exported with a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportableCut {
    /// Unit of the cut. [`DepthUnit::Sublayers`] includes attention and MLP sublayers.
    pub unit: DepthUnit,
    /// Recovery as in a grid, with an option if it changes the formats: `` `nbl` (`input: normed`) ``.
    pub recovery: String,
    pub formats: Formats,
}

/// Export formats that support a cut with its repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formats {
    /// Whether loading a folder needs the modeling file, and a GGUF file needs the architecture `deci`.
    pub needs_code: bool,
    /// Whether GGUF can represent the cut and the repair, provided that it can represent the backbone.
    pub fits_gguf: bool,
}

impl Formats {
    fn new(config: &Config, recovery: &dyn Recovery, unit: DepthUnit) -> Self {
        let needs_code = !unit.is_layers() || recovery.step_form(config).is_some();
        Self { needs_code, fits_gguf: check_gguf(config, Some(recovery), unit).is_ok() }
    }
}

/// Rejects a recovery or a cut unit that GGUF cannot represent.
pub(super) fn check_gguf(config: &Config, recovery: Option<&dyn Recovery>, unit: DepthUnit) -> Result<()> {
    match recovery.and_then(|recovery| recovery.step_form(config)) {
        Some(step) => check_deci_step(config, step),
        None if unit.is_layers() => Ok(()),
        None => check_deci_support(config),
    }
}

/// Returns all combinations of a cut and a recovery that can be exported. An option is listed only if it changes the
/// formats.
pub fn exportable_cuts(config: &Config) -> Vec<ExportableCut> {
    let mut cuts = Vec::new();
    for method in recovery::descriptions() {
        let default = recovery::build(&method.name, &Options::new()).map(|rule| formats_by_unit(config, &*rule));
        let default = default.unwrap_or_default();
        let name = format!("`{}`", method.name);
        cuts.extend(default.iter().map(|&(unit, formats)| ExportableCut { unit, recovery: name.clone(), formats }));
        let mut seen = Vec::new();
        for (option, value) in method.choices() {
            let text = value_text(&value);
            let recovery = format!("{name} (`{option}: {text}`)");
            let Ok((rule, resolved, _)) =
                recovery::build_resolved(&method.name, &Options::from_iter([(option, value)]))
            else {
                continue;
            };
            let formats = formats_by_unit(config, &*rule);
            // Two options may resolve to the same settings, such as `granularity` and `target` of Prune&Comp.
            if formats == default || seen.contains(&resolved) {
                continue;
            }
            seen.push(resolved);
            cuts.extend(formats.iter().map(|&(unit, formats)| ExportableCut {
                unit,
                recovery: recovery.clone(),
                formats,
            }));
        }
    }
    cuts
}

/// Returns the formats for each cut unit that a recovery repairs. The list is empty if the recovery does not apply to
/// the backbone or cannot be exported.
fn formats_by_unit(config: &Config, rule: &dyn Recovery) -> Vec<(DepthUnit, Formats)> {
    if rule.check(config).is_err() || rule.check_export().is_err() {
        return Vec::new();
    }
    let units = match rule.is_repairing() {
        true if rule.replaces_sublayers() => vec![DepthUnit::Sublayers],
        true => vec![DepthUnit::Layers],
        false => vec![DepthUnit::Layers, DepthUnit::Sublayers],
    };
    units.into_iter().map(|unit| (unit, Formats::new(config, rule, unit))).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn listed(architecture: &str, is_listed: fn(&Formats) -> bool) -> Vec<String> {
        let file = format!("tests/fixtures/arch/{architecture}/config.json");
        let config = Config::read_file(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let cuts = exportable_cuts(&config).into_iter().filter(|cut| is_listed(&cut.formats));
        cuts.map(|cut| format!("{}: {}", cut.unit, cut.recovery)).collect()
    }

    #[test]
    fn export_options_are_listed_if_they_change_the_format() {
        let plain = ["none", "prune-and-comp", "replaceme-ls", "replaceme-cos", "merge"];
        let plain = plain.map(|name| format!("layers: `{name}`"));
        assert_eq!(listed("llama-gqa", |formats| !formats.needs_code), plain);
        assert_eq!(
            listed("llama-gqa", |formats| formats.needs_code && formats.fits_gguf),
            [
                "sublayers: `none`",
                "layers: `ghosted` (`input: normed`)",
                "layers: `mean`",
                "sublayers: `nbl` (`input: normed`)",
            ]
        );
        // In OLMo-2, branches end in norms, so neither a linear map nor a factor of the residual stream can be folded
        // into a weight.
        assert_eq!(listed("olmo2", |formats| !formats.needs_code), [&plain[..2], &plain[4..]].concat());
        let coded = listed("olmo2", |formats| formats.needs_code);
        for recovery in ["`replaceme-ls`", "`prune-and-comp` (`granularity: scalar`)", "`nbl`"] {
            assert!(coded.iter().any(|cut| cut.ends_with(recovery)), "{recovery}: {coded:?}");
        }
        assert!(!coded.iter().any(|cut| cut.ends_with("(`target: stream`)")), "{coded:?}");
    }

    #[test]
    fn every_recovery_is_listed_for_llama() {
        let all = listed("llama-gqa", |_| true);
        for method in recovery::descriptions() {
            let name = format!("`{}`", method.name);
            assert!(all.iter().any(|cut| cut.ends_with(&name)), "{name} is not in {all:?}");
        }
    }
}
