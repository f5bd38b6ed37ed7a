//! Files of the Hugging Face hub: pinned by commit, resumed, checked, and kept in the cache that Python uses too.
//!
//! A request ([`Want`]) becomes a [`Plan`] of files, from the lock file ([`Lock`]) if it has the repository, otherwise
//! from the hub; [`Hub::fetch`] downloads files that are not cached. If all are, no network request is made. The layout
//! of the [`Cache`], its variables ([`HubSettings`]) and its locks follow `huggingface_hub`.
//!
//! No data is printed here: progress goes to a [`Reporter`]. The token is sent to the hub's own host only and appears
//! in no message.

mod adopt;
mod answer;
mod cache;
mod client;
mod download;
mod event;
mod fetch;
mod listing;
mod lock;
mod name;
mod partial_file;
mod plan;
mod repo;
mod settings;
mod token;

pub use cache::Cache;
pub use client::Hub;
pub use event::{Event, Reporter, Silent};
pub use fetch::{Fetched, Hash};
pub use lock::{Lock, LockedFile, LockedRepo};
pub use name::{BlobName, Commit, ContentHash, FileName};
pub use plan::{Plan, PlannedFile, PlannedRepo, Want, Wanted};
pub use repo::{Repo, RepoKind, Source};
pub use settings::{HubSettings, Patience};
pub use token::Token;
