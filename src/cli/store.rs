//! `ghostlab store`: begins a store.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::answer::done::{BegunStore, shown};
use super::answer::{self, Answer};
use crate::error::Result;
use crate::stage;
use ghostlab_store::{Shared, Store};

#[derive(Subcommand)]
pub(super) enum Command {
    /// Begin a store in a folder that is empty or not there.
    ///
    /// A run begins one by itself; a store for several users is begun here. Of a store that is there it is changed for whom it
    /// is, and what lies in it gets their rights too, as far as it is yours.
    Init {
        /// The folder.
        folder: PathBuf,
        /// For whom all is that anybody makes in it, whatever the umask: `group` lets the folder's group read and write
        /// (`chgrp` it first), `all` lets everybody else read, too. As git's core.sharedRepository.
        #[arg(long, value_name = "WHOM", value_parser = PossibleValuesParser::new(Shared::NAMES).try_map(|name| name.parse::<Shared>()))]
        shared: Option<Shared>,
    },
}

pub(super) fn run(command: &Command) -> Result<ExitCode> {
    let Command::Init { folder, shared } = command;
    let shared = Store::init(folder, stage::WORDS, *shared)?;
    let begun = BegunStore { store: shown(folder), shared: shared.to_string() };
    answer::show(begun, Answer::StoreInit, |of| match shared {
        Shared::Umask => println!("a store in {}", of.store),
        Shared::Group => println!("a store in {}, which its group reads and writes", of.store),
        Shared::All => println!("a store in {}, which its group writes and everybody reads", of.store),
    })
}
