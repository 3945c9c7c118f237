//! Parts for tests and benches only.

pub mod faults;
pub mod memory;
mod poison;
pub mod rig;
pub mod tiny;
pub mod weather;
