//! What travels down the line. A batch is moved, never cloned; dropping it, for whatever reason, puts its chunks
//! back and frees its permit.

use tokio::sync::OwnedSemaphorePermit;

use crate::{chunk::Chunk, queue::Lease};

/// One chunk on its way, with its receipt and what the last stage made of it.
#[derive(Debug)]
pub struct Item<T> {
    /// The receipt.
    pub lease: Lease,
    /// The chunk.
    pub chunk: Chunk,
    /// What the last stage made of it: `Tokens`, then `Embedding`.
    pub value: T,
}

/// Chunks travelling together, and the permit that counts them as in flight.
#[derive(Debug)]
pub struct Batch<T> {
    /// The chunks.
    pub items: Vec<Item<T>>,
    permit: OwnedSemaphorePermit,
}

impl<T> Batch<T> {
    /// A batch under a permit.
    pub fn new(items: Vec<Item<T>>, permit: OwnedSemaphorePermit) -> Self {
        Self { items, permit }
    }

    /// Takes the chunks out and keeps the permit for what becomes of them.
    pub fn open(self) -> (Vec<Item<T>>, OwnedSemaphorePermit) {
        (self.items, self.permit)
    }
}
