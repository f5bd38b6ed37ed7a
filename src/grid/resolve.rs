//! Axes with every default filled in: options of methods, parts of calibrations, and what an `include` takes from the grid.

use super::at::Positioned;
use super::axes::{Role, WrittenAxes, WrittenCalibration};
use super::cell::Calibration;
use super::depth::Depth;
use super::list;
use super::method::{Method, WrittenMethod};
use super::node::YamlPosition;
use super::registry::Registry;
use crate::error::Result;

/// Axes that say everything. Where the four beside `backbone` are empty there are dense cells only.
#[derive(Debug, Clone)]
pub(super) struct Axes {
    /// Where the map stands that holds them.
    pub(super) place: YamlPosition,
    pub(super) backbone: Vec<Positioned<String>>,
    pub(super) criterion: Vec<Positioned<Method>>,
    pub(super) depth: Vec<Positioned<Depth>>,
    pub(super) recovery: Vec<Positioned<Method>>,
    pub(super) calibration: Vec<Positioned<Calibration>>,
}

/// `written`, and where it has no axis of its own that of `grid`, if any.
///
/// # Errors
/// A method that the registry does not accept, or a calibration that stands twice.
pub(super) fn resolve(written: &WrittenAxes, grid: Option<&Axes>, registry: &dyn Registry) -> Result<Axes> {
    let WrittenAxes { name, place, backbone, criterion, depth, recovery, calibration } = written;
    let methods = |role, written: &[Positioned<WrittenMethod>]| methods(role, written, registry);
    let axis = if name.is_empty() { "calibration".to_owned() } else { format!("{name}.calibration") };
    Ok(Axes {
        place: place.clone(),
        backbone: own_or(backbone, grid.map(|grid| &grid.backbone), |names| Ok(names.to_vec()))?,
        criterion: own_or(criterion, grid.map(|grid| &grid.criterion), |of| methods(Role::Criterion, of))?,
        depth: own_or(depth, grid.map(|grid| &grid.depth), |depths| Ok(depths.to_vec()))?,
        recovery: own_or(recovery, grid.map(|grid| &grid.recovery), |of| methods(Role::Recovery, of))?,
        calibration: own_or(calibration, grid.map(|grid| &grid.calibration), |of| calibrations(&axis, of))?,
    })
}

fn own_or<W, T: Clone>(
    own: &Option<Vec<Positioned<W>>>,
    grid: Option<&Vec<Positioned<T>>>,
    resolve: impl FnOnce(&[Positioned<W>]) -> Result<Vec<Positioned<T>>>,
) -> Result<Vec<Positioned<T>>> {
    own.as_deref().map_or_else(|| Ok(grid.cloned().unwrap_or_default()), resolve)
}

/// Methods that the registry accepts. Of two ways to write one method the first stays.
fn methods(
    role: Role,
    written: &[Positioned<WrittenMethod>],
    registry: &dyn Registry,
) -> Result<Vec<Positioned<Method>>> {
    let mut methods: Vec<Positioned<Method>> = Vec::new();
    for Positioned { value: method, place } in written {
        let WrittenMethod { name, options } = method;
        let resolved = match role {
            Role::Criterion => registry.resolve_criterion(name, options),
            Role::Recovery => registry.resolve_recovery(name, options),
        };
        let resolved = resolved.map_err(|error| {
            // Of several methods at one place the message has to say which one it means.
            let shared = written.iter().filter(|other| other.place == *place).count() > 1;
            let error = if shared { error.at(method.to_string()) } else { error };
            error.at(place.to_string())
        })?;
        let value = Method { name: name.clone(), options: options.clone(), resolved };
        if methods.iter().all(|known| known.value != value) {
            methods.push(Positioned { value, place: place.clone() });
        }
    }
    Ok(methods)
}

fn calibrations(axis: &str, written: &[Positioned<WrittenCalibration>]) -> Result<Vec<Positioned<Calibration>>> {
    let filled = |of: &Positioned<WrittenCalibration>| Positioned { value: of.value.filled(), place: of.place.clone() };
    let calibrations: Vec<Positioned<Calibration>> = written.iter().map(filled).collect();
    list::none_twice(axis, &calibrations)?;
    Ok(calibrations)
}
