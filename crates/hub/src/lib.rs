//! Downloads from the Hugging Face Hub: pinned by commit, resumable, verified, and stored in the cache of
//! `huggingface_hub`.
//!
//! A request ([`RepoFiles`]) is resolved into a [`FetchPlan`] of files, from the lock file ([`Lock`]) if it pins the
//! repository, and from the Hub otherwise. [`Hub::fetch`] downloads the files that are not cached. If all are cached,
//! no network request is made. The layout of the [`Cache`], its environment variables ([`HubSettings`]) and its locks
//! follow `huggingface_hub`.
//!
//! This crate never prints. Progress goes to a [`Reporter`]. The token is sent only to the Hub itself and never appears
//! in messages.
//!
//! ```
//! use ghostlab_hub::Source;
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! let source = Source::parse("meta-llama/Llama-3.1-8B")?;
//! assert_eq!(source.to_string(), "meta-llama/Llama-3.1-8B@main");
//! # Ok(())
//! # }
//! ```
//!
//! `tools/hf_hub` shows which of these guarantees the library `hf-hub` 1.0.0 does not provide.

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
pub use event::{Event, Reporter, SilentReporter};
pub use fetch::{FetchSummary, FileHasher};
pub use lock::{Lock, LockedFile, LockedRepo};
pub use name::{BlobName, Commit, ContentHash, FileName};
pub use plan::{FetchPlan, FilePattern, PlannedFile, PlannedRepo, RepoFiles};
pub use repo::{Repo, RepoKind, Source};
pub use settings::{HubSettings, RetryPolicy};
pub use token::Token;
