//! `completions`: a script that lets a shell complete verbs and options.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Exit};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Which shell
    shell: Shell,
}

pub(super) fn completions(arguments: &Arguments) -> Exit {
    clap_complete::generate(arguments.shell, &mut Cli::command(), "forebay", &mut std::io::stdout());
    Exit::Ok
}
