//! `witness`: tells an empty store from a lost one. Written by temp name, fsync and rename.

use std::{io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::FolderError;

/// Version of the data folder as a whole.
pub const FORMAT: u32 = 1;
const FILE: &str = "witness";

/// What is known outside the queue's own store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// Version of the data folder.
    pub format: u32,
    /// Identifies this data folder; stored with every vector it writes.
    pub store: Uuid,
    /// Counts opens of the queue; never ahead of the queue's own count unless that was rolled back.
    pub generation: u64,
}

impl Witness {
    /// The witness of a new folder.
    pub fn of_new_folder() -> Self {
        Self { format: FORMAT, store: Uuid::now_v7(), generation: 0 }
    }

    /// Reads it; `None` when there is none.
    ///
    /// # Errors
    /// I/O, damage, a newer format.
    pub fn read(dir: &Path) -> Result<Option<Self>, FolderError> {
        let path = dir.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            // Not text: it is damaged like any other that is not ours.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => String::new(),
            Err(error) => return Err(FolderError::io(&path, error)),
        };
        let witness: Self = serde_json::from_str(&text).map_err(|_| FolderError::Damaged {
            path: path.display().to_string(),
            what: "it is not a witness file; move it aside and run again: it is made again from ledger.db"
                .into(),
        })?;
        if witness.format > FORMAT {
            let (found, known) = (witness.format, FORMAT);
            return Err(FolderError::Newer { path: path.display().to_string(), found, known });
        }
        Ok(Some(witness))
    }

    /// Writes it, durable on return.
    ///
    /// # Errors
    /// I/O.
    pub fn write(&self, dir: &Path) -> Result<(), FolderError> {
        let (path, temp) = (dir.join(FILE), dir.join("witness.new"));
        let text = serde_json::to_string(self).expect("plain data");
        let work = || -> std::io::Result<()> {
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temp)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temp, &path)?;
            std::fs::File::open(dir)?.sync_all()
        };
        work().map_err(|error| FolderError::io(&path, error))
    }
}
