//! Forebay embeds text where the data lives: a durable, supervised line that streams a corpus through a
//! local model into a vector store, and never loses, repeats or silently spoils a chunk.

pub mod chunk;
pub mod error;
pub mod identity;

pub mod embed;
pub mod ledger;
pub mod queue;
pub mod sink;
pub mod source;

#[cfg(feature = "testkit")]
pub mod testkit;
