//! Writing of calibration activations on a separate thread, so that the pass does not wait for the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::panic;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::calibrate::{HookPoint, Spool};
use crate::error::{Error, Result};
use ghostlab_store::{Draft, Payload, Store};

/// Payload that contains the rows of a site as f32.
pub(super) const ROWS: &str = "rows.f32";
/// Maximum number of blocks of rows in memory that wait for the disk.
const MAX_WAITING_BLOCKS: usize = 2;

/// Uncommitted objects of one shard by site. Dropping them discards their rows.
pub(super) type Drafts = BTreeMap<HookPoint, Draft>;

/// Open payload files of all shards, by shard and site.
type Payloads = BTreeMap<(usize, HookPoint), Payload>;

/// Rows of one site of a shard.
struct Block {
    shard: usize,
    site: HookPoint,
    rows: Vec<f32>,
}

/// Thread that writes rows to drafts.
pub(super) struct RowWriter {
    sender: SyncSender<Block>,
    thread: JoinHandle<Result<()>>,
}

/// Spool that passes the rows of one shard to the thread.
pub(super) struct ShardSpool<'a> {
    shard: usize,
    sites: &'a BTreeSet<HookPoint>,
    sender: SyncSender<Block>,
}

impl RowWriter {
    /// Creates a draft per shard and site, and starts the thread.
    pub(super) fn start(store: &Store, shards: usize, sites: &BTreeSet<HookPoint>) -> Result<(Self, Vec<Drafts>)> {
        let mut payloads = Payloads::new();
        let mut drafts = Vec::with_capacity(shards);
        for shard in 0..shards {
            let mut by_site = Drafts::new();
            for &site in sites {
                let mut draft = store.draft()?;
                payloads.insert((shard, site), draft.payload(ROWS)?);
                by_site.insert(site, draft);
            }
            drafts.push(by_site);
        }
        let (sender, receiver) = sync_channel(MAX_WAITING_BLOCKS);
        let thread = std::thread::Builder::new().name("activations".to_string());
        let thread = thread
            .spawn(move || write_blocks(payloads, &receiver))
            .map_err(|error| Error::job("cannot start a thread").found(error.to_string()))?;
        Ok((Self { sender, thread }, drafts))
    }

    pub(super) fn spool<'a>(&self, shard: usize, sites: &'a BTreeSet<HookPoint>) -> ShardSpool<'a> {
        ShardSpool { shard, sites, sender: self.sender.clone() }
    }

    /// Waits until all rows are written, and closes the files.
    ///
    /// # Errors
    /// Fails if rows could not be written.
    pub(super) fn finish(self) -> Result<()> {
        drop(self.sender);
        self.thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    }
}

impl Spool for ShardSpool<'_> {
    fn push(&mut self, site: HookPoint, rows: &[f32]) -> Result<()> {
        if !self.sites.contains(&site) {
            return Ok(());
        }
        let block = Block { shard: self.shard, site, rows: rows.to_vec() };
        // The thread ends early only if a write failed. `RowWriter::finish` returns that error.
        self.sender.send(block).map_err(|_| Error::job("cannot write calibration activations").at(site.to_string()))
    }
}

/// Writes blocks of rows until all senders are dropped.
fn write_blocks(mut payloads: Payloads, blocks: &Receiver<Block>) -> Result<()> {
    for Block { shard, site, rows } in blocks {
        let Some(payload) = payloads.get_mut(&(shard, site)) else { continue };
        payload.write_all(bytemuck::cast_slice(&rows)).map_err(|error| write_error(site, &error))?;
    }
    for ((_, site), payload) in payloads {
        payload.into_inner().map_err(|error| write_error(site, error.error()))?;
    }
    Ok(())
}

fn write_error(site: HookPoint, error: &std::io::Error) -> Error {
    disk_full_error("cannot write calibration activations", error).at(site.to_string())
}

pub(super) fn disk_full_error(message: &str, error: &std::io::Error) -> Error {
    Error::missing(message).found(error.to_string()).hint("free some disk space, or use another folder with --store")
}
