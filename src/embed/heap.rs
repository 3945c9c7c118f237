//! How the C library's heap is kept flat. By itself it raises the size from which blocks are given back at once as it
//! sees large ones freed, and then every thread's arena keeps its high-water mark: 570 MB and rising with 64 threads
//! where 190 do. (Another allocator, mimalloc, kept more: `benches/RESULTS.md`.)

/// Bytes from which a block is mapped on its own and given back when freed: large intermediate results of a pass.
const MAPPED_BYTES: i32 = 1 << 20;

/// Free bytes at an arena's end that are given back.
const TRIM_BYTES: i32 = 2 << 20;

/// Fixes both sizes for the process; setting one is what ends their adaption. Once, before threads are started.
#[expect(unsafe_code, reason = "std has no call for it")]
pub fn keep_flat() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two integers, locks what it changes, and refuses values it does not know.
    let taken = unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES)
            & libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_BYTES)
    };
    #[cfg(target_env = "gnu")]
    if taken != 1 {
        tracing::debug!("the heap's sizes could not be fixed: memory may grow with the number of threads");
    }
}
