//! What can go wrong with the queue.

/// What can go wrong with the queue.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// No space is left.
    #[error("the disk is full: the queue could not be flushed; free some space and run again")]
    DiskFull,
    /// The store answers with an error, or is not the one it should be.
    #[error("the queue is damaged: {0}; `forebay run` makes it anew from its journal and the sources")]
    Damaged(String),
    /// Flushes cannot be made durable here.
    #[error("flushes of the queue cannot be made durable on this system: {0}")]
    NotDurable(std::io::Error),
    /// A journal line is not ours.
    #[error(
        "{path} is damaged at byte {offset}: {why}; move the file aside and run `forebay rebuild`, or restore it"
    )]
    JournalDamaged {
        /// The journal.
        path: String,
        /// Where.
        offset: u64,
        /// What.
        why: String,
    },
    /// Reading or writing failed.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
}

impl QueueError {
    /// Whether there was no space left.
    pub fn is_full(&self) -> bool {
        match self {
            Self::DiskFull => true,
            Self::NotDurable(error) | Self::Io { error, .. } => {
                matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
            }
            Self::Damaged(_) | Self::JournalDamaged { .. } => false,
        }
    }
}

impl From<sled::Error> for QueueError {
    fn from(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => Self::DiskFull,
            other => Self::Damaged(other.to_string()),
        }
    }
}
