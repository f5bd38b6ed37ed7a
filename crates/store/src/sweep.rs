//! Removal of leftovers from dead processes.

use crate::{Store, gc_roots, journal, processes, worker};

impl Store {
    /// Removes leftovers from dead processes: drafts, leases, reserved hashes, temporary files and journals of stored
    /// work. Process records are removed last, because they identify the owner of everything else. Journals of
    /// unfinished work stay.
    pub fn sweep(&self) {
        if self.scratch.is_some() {
            return;
        }
        let disk = &*self.disk;
        let known = processes::list_processes(disk, &self.root);
        worker::remove_dead_leases(disk, &self.root, self.schema, &known);
        for draft in self.abandoned_drafts().iter().filter(|draft| draft.dead) {
            disk.remove_folder(&draft.folder).ok();
        }
        let living: Vec<&str> =
            known.iter().filter(|known| !known.dead).map(|known| known.process.id.as_str()).collect();
        journal::sweep(
            disk,
            &self.root.join("journals"),
            |owner: &str| !living.contains(&owner),
            |hash: &str| self.schema.kinds.iter().any(|&kind| self.has_hash(kind, hash)),
        );
        gc_roots::sweep(disk, &self.root, &known);
        for known in known.iter().filter(|known| known.dead) {
            disk.remove(&gc_roots::list_path(&self.root, &known.process.id)).ok();
            // Entries that are not regular files are left for `cache verify` to report.
            if known.is_file {
                disk.remove(&known.record).ok();
            }
        }
        for folder in
            [self.root.clone(), self.drafts(), self.runs_dir(), self.root.join("index"), self.root.join("processes")]
        {
            disk.sweep(&folder);
        }
    }
}
