//! Parts for tests and benches only.

pub mod faults;
pub mod memory;
pub mod poison;
pub mod rig;
pub mod tiny;
pub mod weather;
