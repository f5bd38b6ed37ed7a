//! From one calibration to the variants of one backbone: selections, activations, operators, programs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde_json::{Value, json};

use super::run::Run;
use super::selection::{Picked, Selections};
use super::variant::{self, CellResult};
use crate::calibrate::{self, Activations, Request, Shape, Similarities, Site, Spool};
use crate::corpus::Windows;
use crate::error::{Error, Kind, Result};
use crate::files::sha256;
use crate::grid::Calibration;
use crate::model::{Load, Trie};
use crate::recovery::Span;
use crate::store::{Artifact, Key, Lookup, Store};

/// One calibration of one backbone at work.
pub(super) struct Calibrating<'a> {
    pub(super) run: &'a Run<'a>,
    pub(super) store: &'a Store,
    pub(super) windows: &'a Windows,
    /// How reports name it.
    label: String,
    /// What every artifact of it is made of: backbone, tokens, float type, device class.
    made_of: Value,
    shape: Shape,
}

impl<'a> Calibrating<'a> {
    pub(super) fn new(run: &'a Run<'a>, store: &'a Store, windows: &'a Windows, calibration: &Calibration) -> Self {
        let made_of = json!({
            "backbone": run.backbone.content,
            "tokens": sha256::of_bytes(bytemuck::cast_slice::<u32, u8>(&windows.ids)),
            "sequences": windows.count(),
            "length": windows.length,
            "dtype": "f32",
            "device": "cpu",
        });
        let shape = Shape { channels: run.decoder.config().hidden, sequences: windows.count(), length: windows.length };
        Self { run, store, windows, label: format!("calibrate {} on {calibration}", run.backbone.name), made_of, shape }
    }

    /// A key of this calibration's content and something more.
    pub(super) fn key(&self, kind: crate::store::Kind, name: &str, value: Value) -> Key {
        let mut made_of = self.made_of.clone();
        made_of[name] = value;
        Key::new(kind, &made_of)
    }

    /// Selects, repairs and writes the programs of cells that share this calibration.
    ///
    /// # Errors
    /// What stops the whole run. What only these cells suffer from is written into them.
    pub(super) fn repair(&self, cells: &mut [&mut CellResult]) -> Result<()> {
        match self.try_repair(cells) {
            Err(error) if error.kind() == Kind::Job => {
                for cell in cells {
                    cell.failure.get_or_insert_with(|| error.one_line());
                }
                Ok(())
            }
            other => other,
        }
    }

    fn try_repair(&self, cells: &mut [&mut CellResult]) -> Result<()> {
        let mut selections = Selections::of(self, cells)?;
        let started = Instant::now();
        let mut artifacts = BTreeMap::new();
        let mut wanted: BTreeSet<Site> = BTreeSet::new();
        for cell in cells.iter() {
            let recovery = variant::recovery(&cell.cell)?;
            for (start, end) in selections.regions(cell)? {
                let spans = recovery.spans(Span { start, end });
                wanted.extend(spans.into_iter().flat_map(|span| recovery.sites(span)));
            }
        }
        wanted.retain(|&site| match self.stored(site) {
            Some(artifact) => artifacts.insert(site, artifact).is_some(),
            None => true,
        });
        let mut request = Request { pairs: selections.pairs(), sites: wanted };
        let all_bytes = self.shape.bytes() * request.sites.len() as u64;
        let fits = all_bytes <= self.run.settings.spool_bytes;
        if !request.is_empty() {
            self.run.note(&format!(
                "{}: {} sites, {:.1} MB of activations, {}",
                self.label,
                request.sites.len(),
                all_bytes as f64 / 1e6,
                if fits { "one pass" } else { "over the limit: a second pass spools only what the selections chose" }
            ));
        }
        if !fits && !request.pairs.is_empty() {
            request.sites.clear();
        }
        let mut spool = None;
        if !request.is_empty() {
            let measured = self.pass(&self.label, &request)?;
            selections.finish(self, &measured.similarities)?;
            spool = Some(measured.spool);
        } else {
            selections.finish(self, &Similarities::default())?;
        }
        selections.write(cells);
        let seconds = started.elapsed().as_secs_f64();
        let chosen = variant::chosen_sites(cells)?;
        self.keep(spool.as_mut(), &chosen, seconds, &mut artifacts)?;
        let rest: BTreeSet<Site> = chosen.iter().copied().filter(|site| !artifacts.contains_key(site)).collect();
        if !rest.is_empty() {
            let started = Instant::now();
            let request = Request { sites: rest, ..Request::default() };
            let mut spool = self.pass(&format!("{}, second pass", self.label), &request)?.spool;
            self.keep(Some(&mut spool), &chosen, started.elapsed().as_secs_f64(), &mut artifacts)?;
        }
        let activations = Activations::open(self.shape, &artifacts)?;
        let share = started.elapsed().as_secs_f64() / cells.len().max(1) as f64;
        for cell in cells.iter_mut() {
            cell.seconds += share;
            variant::repair(cell, &self.run.decoder, &activations);
            self.run.check_stop()?;
        }
        Ok(())
    }

    fn pass(&self, label: &str, request: &Request) -> Result<calibrate::Calibration> {
        let windows: Vec<&[u32]> = self.windows.iter().collect();
        let tokens = self.windows.ids.len();
        let trie = Trie::new(&[request.program(self.run.decoder.config().layers)]);
        self.run.start(label, tokens, 0, self.run.cost(&trie, &Load::windows(tokens, self.shape.length)).shared);
        let progress = |tokens| self.run.advance(tokens);
        let batch = self.run.settings.batch_tokens;
        let measured = calibrate::run(&self.run.decoder, &windows, batch, request, self.store, progress)
            .map_err(|error| error.at(self.label.clone()))?;
        self.run.finish();
        Ok(measured)
    }

    /// Perplexity without each of some sets of layers, all in one trie.
    pub(super) fn perplexities(&self, label: &str, removed: &[Vec<usize>]) -> Result<Vec<f64>> {
        let label = format!("{label} for {} ({} trials)", self.run.backbone.name, removed.len());
        let losses = self.run.perplexities(&label, self.windows, removed)?;
        // A variant that overflows is the worst there is.
        Ok(losses.into_iter().map(|p| if p.is_nan() { f64::INFINITY } else { p }).collect())
    }

    fn site_key(&self, site: Site) -> Key {
        self.key(crate::store::Kind::Activations, "site", json!(site.to_string()))
    }

    fn stored(&self, site: Site) -> Option<Artifact> {
        self.get(&self.site_key(site), &format!("activations of {site}"))
    }

    /// What is stored under a key; damage is told and counts as absent.
    pub(super) fn get(&self, key: &Key, what: &str) -> Option<Artifact> {
        match self.store.get(key) {
            Lookup::Whole(artifact) => Some(artifact),
            Lookup::Absent => None,
            Lookup::Damaged(error) => {
                self.run.note(&format!("{what}: {}; made anew", error.one_line()));
                None
            }
        }
    }

    fn keep(
        &self,
        spool: Option<&mut Spool>,
        chosen: &BTreeSet<Site>,
        seconds: f64,
        artifacts: &mut BTreeMap<Site, Artifact>,
    ) -> Result<()> {
        let Some(spool) = spool else { return Ok(()) };
        for &site in chosen {
            if let Some(artifact) = spool.keep(self.store, site, &self.site_key(site), seconds)? {
                artifacts.insert(site, artifact);
            }
        }
        Ok(())
    }
}

impl Selections {
    /// The regions that a cell's selection has or may have.
    fn regions(&self, cell: &CellResult) -> Result<Vec<(usize, usize)>> {
        match self.of_cell(cell) {
            Some(Picked::Done(selection)) => Ok(selection.regions()),
            Some(Picked::Failed(_)) => Ok(Vec::new()),
            Some(Picked::Waiting { criterion, cut }) => Ok(criterion.regions(&cut.borrowed())),
            None => Err(Error::job("a cell has no selection").at(cell.cell.to_string())),
        }
    }
}
