//! What a grid asks about methods and backbones before anything runs.

use std::path::Path;

use crate::corpus::Rule;
use crate::criterion::PruneSpec;
use crate::error::Result;
use crate::grid::{Method, Registry};
use crate::model::{self, Config};
use crate::options::{Described, Options};
use crate::tasks::TASKS;
use crate::{criterion, recovery};

/// The methods and backbones that this program knows.
pub struct Methods;

impl Registry for Methods {
    fn layers(&self, backbone_folder: &Path) -> Result<usize> {
        let config = Config::read_with_attachments(backbone_folder)?;
        // Before anything is made of its numbers: of 10^7 layers the cells alone would be too many.
        model::check_weights(&config, backbone_folder)?;
        Ok(config.layers)
    }

    fn criteria(&self) -> Vec<Described> {
        criterion::described()
    }

    fn recoveries(&self) -> Vec<Described> {
        recovery::described()
    }

    fn resolve_criterion(&self, name: &str, options: &Options) -> Result<Options> {
        criterion::resolve(name, options)
    }

    fn resolve_recovery(&self, name: &str, options: &Options) -> Result<Options> {
        recovery::resolve(name, options)
    }

    fn rules(&self) -> Vec<&str> {
        Rule::ALL.into_iter().map(Rule::name).collect()
    }

    fn tasks(&self) -> Vec<&str> {
        TASKS.iter().map(|task| task.name).collect()
    }

    fn check_depth(&self, criterion: &Method, backbone: &str, depth: usize, layers: usize) -> Result<()> {
        criterion::build(&criterion.name, &criterion.options)?.check(&PruneSpec { backbone, layers, depth })
    }
}
