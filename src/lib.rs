//! Forebay embeds text where the data lives: a durable, supervised line that streams a corpus through a
//! local model into a vector store, and never loses, repeats or silently spoils a chunk.

// Not in Cargo.toml, because tests and benches may do both. cli/ opts in to printing.
#![deny(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

pub mod chunk;
pub mod clock;
pub mod error;
pub mod identity;

pub mod embed;
pub mod folder;
pub mod ledger;
pub mod ops;
pub mod pipeline;
pub mod queue;
pub mod repair;
pub mod sink;
pub mod source;

pub mod cli;
pub mod config;

#[cfg(feature = "testkit")]
pub mod testkit;
