//! Files of the Hugging Face hub: pinned by commit, resumed, checked, and kept in the cache that Python uses too.
//!
//! What a caller wants ([`Want`]) becomes a [`Plan`] of files, from the lock file ([`Lock`]) where the repository stands
//! in it and from the hub otherwise; [`Hub::fetch`] brings what is not in the cache. Where everything is, nothing is asked
//! of the network. The layout of the [`Cache`], its variables ([`HubSettings`]) and its locks are `huggingface_hub`'s.
//!
//! Nothing here prints: progress is told to a [`Reporter`]. The token is sent to the hub's own host and to nobody else, and
//! stands in no message.

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
