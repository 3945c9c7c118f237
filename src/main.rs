//! Runs the command line and turns its result into an exit code.

use std::process::ExitCode;

/// The system's allocator keeps what each thread once needed: with many threads memory grew for as long as a run
/// went on (`benches/RESULTS.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    forebay::cli::main()
}
