//! SQLite's errors to ours: whose fault it is, and what to do.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    path::Path,
};

use rusqlite::ffi::ErrorCode;

use super::SinkError;
use crate::error::{Class, Fault};

/// What an SQLite error means when no row is to blame.
pub fn fault(path: &Path, doing: &str, error: rusqlite::Error) -> SinkError {
    let (name, code) = (path.display(), code(&error));
    let unavailable = |class, what: &str| {
        let fault = Fault::new(class, format!("{name}: {what} while {doing}"));
        SinkError::Unavailable(fault.with_code(code.clone()))
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => unavailable(Class::DiskFull, "no space is left on the disk"),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            unavailable(Class::SinkUnavailable, "another process holds the write lock")
        }
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::FileLockingProtocolFailed) => {
            // SQLite says "I/O error" for a full quota and for a full disk under its -shm file.
            if space(path).is_err_and(|error| is_full(&error)) {
                unavailable(Class::DiskFull, "no space is left on the disk")
            } else {
                unavailable(
                    Class::SinkUnavailable,
                    "the file, or its -wal or -shm, could not be read or written (`forebay rebuild` helps when it is lost)",
                )
            }
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::OutOfMemory) => {
            unavailable(Class::SinkUnavailable, "writing was refused by the system")
        }
        Some(ErrorCode::DatabaseCorrupt) => SinkError::Unusable(format!(
            "{name} is damaged ({code}, while {doing}); move it away (or repair it with `sqlite3 {name} .recover`) \
             and run again: what is missing in the sink is embedded again after `forebay rebuild`"
        )),
        Some(ErrorCode::NotADatabase) => SinkError::Unusable(format!(
            "{name} is not an SQLite database; move it away, or set sink.path to another file"
        )),
        _ => SinkError::Unusable(format!(
            "{name}: SQLite refused ({code}) while {doing}; run `forebay check`, and move the file away if it was \
             changed by hand"
        )),
    }
}

/// The same for one row: what is wrong with the row itself is told apart from everything else.
pub fn row_fault(path: &Path, index: usize, error: rusqlite::Error) -> SinkError {
    let refused = matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch)
    );
    if !refused {
        return fault(path, "writing a batch", error);
    }
    let code = code(&error);
    let fault = Fault::new(Class::SinkRejectedRow, format!("the sink refused the row ({code})"));
    SinkError::Row { index, fault: fault.with_code(code) }
}

/// `SQLITE_…` extended code as a number, for the native code of a fault. The text of the message is left out:
/// a trigger may have put anything in it.
fn code(error: &rusqlite::Error) -> String {
    error.sqlite_error().map_or_else(|| "SQLITE_?".to_owned(), |e| format!("SQLITE_{}", e.extended_code))
}

/// Whether some bytes more can be made durable beside `path`: tried on a file that has no name any more when
/// the bytes are written, so that not even a crash leaves it behind.
///
/// # Errors
/// What the system said.
pub fn space(path: &Path) -> io::Result<()> {
    let name = format!(".forebay-space-{}", std::process::id());
    let probe = path.parent().unwrap_or_else(|| Path::new(".")).join(name);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&probe)?;
    std::fs::remove_file(&probe)?;
    file.write_all(&[0; 65_536])?;
    file.sync_data()
}

/// Whether the system said that nothing more fits.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The fault of a full disk that the system, not SQLite, reported.
pub fn full(path: &Path, error: &io::Error) -> Fault {
    let code = error.raw_os_error().map_or_else(|| "ENOSPC".to_owned(), |errno| format!("errno {errno}"));
    Fault::new(Class::DiskFull, format!("{}: no space is left on the disk", path.display())).with_code(code)
}
