//! What is done to a data folder beside running it: status, the dead letters' verbs, verify, rebuild; directly, or
//! over the control socket of the process that holds it.

pub mod command;
pub mod control;
mod diagnose;
pub mod document;
pub mod export;
pub mod forget;
pub mod import;
pub mod purge;
pub mod rebuild;
mod redrive;
mod reference;
pub mod status;
pub mod verify;

use crate::{folder::Folder, pipeline::Line};

/// What a verb works on.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The open data folder.
    pub folder: &'a Folder,
    /// The run that holds it, if there is one.
    pub line: Option<&'a Line>,
    /// How records are decoded, for a redrive of one that could not be read.
    pub source: &'a crate::source::Settings,
    /// Longest line of input.
    pub line_bytes: u64,
}
