//! `init`: a settings file in which everything can be seen and nothing is fixed that was not asked for.

use std::{fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt, path::PathBuf};

use serde_json::json;

use super::{Exit, Shared, setup};
use crate::{
    config::{DEFAULT_FILE, DEFAULTS, Origin, Setting},
    embed::entry::Entry,
};

const HEAD: &str = "\
# Settings of Forebay. A line that starts with `#` and a name is the default, commented out: take the `#` away to set
# it. The environment (FOREBAY__DATA__DIR=…), flags and `--set data.dir=…` come on top; `forebay check` prints what holds
# and where it came from. Units stand in the names. Secrets are never set here: they come from the environment.
";

pub(super) fn init(shared: &Shared) -> Result<Exit, String> {
    let path = shared.config.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    let given = setup::flags_alone(shared)?;
    if let Some(Setting { value, .. }) = given.iter().find(|setting| setting.key == "model.name") {
        let name = value.as_str().unwrap_or_default();
        if name != "instant" {
            Entry::find(name).map_err(|error| error.to_string())?;
        }
    }
    let text = settings_file(&given);
    let io = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => format!(
            "{} is there already and was left as it is; edit it, or write another one: forebay init --config FILE",
            path.display()
        ),
        _ => format!("{}: {error}; check the folder and its permissions", path.display()),
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path).map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)?;
    if shared.json {
        println!("{}", json!({ "file": path.display().to_string() }));
    } else {
        println!("wrote {}", path.display());
    }
    Ok(Exit::Ok)
}

/// `config.toml` with its values commented out, but for those that were given by a flag.
fn settings_file(settings: &[Setting]) -> String {
    let body = DEFAULTS.split_once("\n\n").map_or(DEFAULTS, |(_, body)| body);
    let mut out = format!("{HEAD}\n");
    let mut section = "";
    for line in body.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
        }
        let name = line.split_once(" = ").map(|(name, _)| name).filter(|_| !line.starts_with('#'));
        let set = name.and_then(|name| {
            let key = format!("{section}.{name}");
            settings.iter().find(|setting| setting.key == key && matches!(setting.origin, Origin::Flag(_)))
        });
        match (name, set) {
            (Some(name), Some(setting)) => out.push_str(&format!("{name} = {}", setting.value)),
            (Some(_), None) => out.push_str(&format!("#{line}")),
            (None, _) => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Flag, Request};

    fn loaded(dir: &std::path::Path, text: &str) -> Vec<Setting> {
        std::fs::write(dir.join(DEFAULT_FILE), text).unwrap();
        Config::load(&Request { dir: dir.to_owned(), ..Request::default() }).unwrap().origins
    }

    #[test]
    fn every_line_that_is_commented_out_is_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let defaults = Config::load(&Request { dir: dir.path().to_owned(), ..Request::default() }).unwrap();
        let text = settings_file(&defaults.origins);
        let same = loaded(dir.path(), &text);
        assert_eq!(same, defaults.origins, "as written it changes nothing");
        let live: String = text
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let live = loaded(dir.path(), &live);
        assert_eq!(live.len(), defaults.origins.len());
        for (live, default) in live.iter().zip(&defaults.origins) {
            assert_eq!((&live.key, &live.value), (&default.key, &default.value));
            assert!(matches!(live.origin, Origin::File { .. }), "{} is not in the file", live.key);
        }
    }

    #[test]
    fn what_was_given_stands_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let flag = |key: &str, value: &str| Flag { key: key.into(), value: value.into(), typed: "x".into() };
        let flags = vec![flag("model.name", "instant"), flag("source.id_fields", "a,b")];
        let given =
            Config::load(&Request { dir: dir.path().to_owned(), flags, ..Request::default() }).unwrap();
        let found = loaded(dir.path(), &settings_file(&given.origins));
        let live: Vec<_> =
            found.iter().filter(|s| s.origin != Origin::Default).map(|s| s.key.as_str()).collect();
        assert_eq!(live, ["model.name", "source.id_fields"]);
        let values: Vec<_> = found.iter().map(|s| &s.value).collect();
        assert_eq!(values, given.origins.iter().map(|s| &s.value).collect::<Vec<_>>());
    }
}
