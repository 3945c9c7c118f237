//! Texts lie in the data folder: nobody but its owner may look into it.

use std::{
    fs::{DirBuilder, Metadata, Permissions},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
};

use super::FolderError;

const PRIVATE: u32 = 0o700;
const OTHERS: u32 = 0o077;
/// What a folder of ours may hold; with anything else in it, it is somebody's, and its mode is theirs to choose.
const OURS: [&str; 10] = [
    "queue",
    "ledger.db",
    "dead-letters.jsonl",
    "spool",
    "runs.jsonl",
    "vectors.db",
    "control.sock",
    "lock",
    "witness",
    "budgets.json",
];

/// Makes the folder with mode 0700; one that is there already and is open to others is closed to them.
///
/// # Errors
/// When it cannot be made or read.
pub fn make(dir: &Path) -> Result<(), FolderError> {
    let io = |error| FolderError::io(dir, error);
    DirBuilder::new().recursive(true).mode(PRIVATE).create(dir).map_err(io)?;
    let found = std::fs::metadata(dir).map_err(io)?;
    if found.mode() & OTHERS != 0 {
        close(dir, &found);
    }
    Ok(())
}

fn close(dir: &Path, found: &Metadata) {
    let mode = format!("{:o}", found.mode() & 0o777);
    let close = || std::fs::set_permissions(dir, Permissions::from_mode(found.mode() & !OTHERS));
    if !is_ours(dir) {
        tracing::warn!(dir = %dir.display(), mode, "others may look into the data folder, which holds other files too; \
             texts in it are readable by you alone, their number and sizes by all");
    } else if let Err(error) = close() {
        // A volume of another owner, or a file system without modes: there the mount decides.
        tracing::warn!(dir = %dir.display(), mode, %error, "others may look into the data folder");
    } else {
        tracing::info!(dir = %dir.display(), mode, "the data folder was open to others; now only its owner reads it");
    }
}

fn is_ours(dir: &Path) -> bool {
    let ours = |name: &str| OURS.iter().any(|ours| name.starts_with(ours));
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.flatten().all(|entry| entry.file_name().to_str().is_some_and(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_after(wide: &[&str]) -> u32 {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("data");
        std::fs::create_dir(&at).unwrap();
        std::fs::set_permissions(&at, Permissions::from_mode(0o755)).unwrap();
        wide.iter().for_each(|name| std::fs::write(at.join(name), "").unwrap());
        make(&at).unwrap();
        std::fs::metadata(&at).unwrap().mode() & 0o777
    }

    #[test]
    fn a_wide_folder_of_ours_is_closed_and_somebodys_is_left_alone() {
        assert_eq!(mode_after(&[]), 0o700);
        assert_eq!(mode_after(&["witness", "ledger.db-wal", "queue.damaged-17"]), 0o700);
        assert_eq!(mode_after(&["witness", "thesis.txt"]), 0o755);
    }
}
