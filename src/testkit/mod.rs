//! Parts for tests and benches only.

pub mod tiny;
