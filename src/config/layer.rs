//! Reading one layer (file, environment, flags) into assignments. Nothing is judged here.

use std::{ffi::OsString, path::Path};

use toml::{Table, Value, de::DeTable};

use super::{Flag, origin::Origin, problem::Problem};

/// A value as a layer gives it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Given {
    /// Typed by TOML.
    Typed(Value),
    /// Text, to be read as the setting's type.
    Text(String),
    /// An environment variable that is not UTF-8.
    NotText,
}

/// `key = value`, with its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Assignment {
    /// Dotted key.
    pub(super) key: String,
    /// The value.
    pub(super) given: Given,
    /// Its place.
    pub(super) origin: Origin,
}

/// The assignments of a file, in the order of its lines.
pub(super) fn of_file(text: &str, path: &Path) -> Result<Vec<Assignment>, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let syntax = |error: &toml::de::Error| Problem::Syntax {
        origin: Origin::File {
            path: path.to_owned(),
            line: line_of(text, error.span().map_or(0, |span| span.start)),
        },
        why: error.message().to_owned(),
    };
    let places = DeTable::parse(text).map_err(|error| syntax(&error))?;
    let values: Table = toml::from_str(text).map_err(|error| syntax(&error))?;
    let mut found = Vec::new();
    flatten("", places.get_ref(), &values, &mut |key, start, value| found.push((start, key, value.clone())));
    found.sort_by_key(|(start, ..)| *start);
    let place = |start| Origin::File { path: path.to_owned(), line: line_of(text, start) };
    Ok(found
        .into_iter()
        .map(|(start, key, value)| Assignment { key, given: Given::Typed(value), origin: place(start) })
        .collect())
}

/// Calls `each(dotted key, byte offset of the key, value)` for every leaf. An empty section is a leaf, so
/// that a misspelt one is noticed.
fn flatten(prefix: &str, places: &DeTable<'_>, values: &Table, each: &mut impl FnMut(String, usize, &Value)) {
    for (name, place) in places {
        let Some(value) = values.get(name.get_ref().as_ref()) else { continue };
        let quoted = if name.get_ref().contains('.') {
            format!("\"{}\"", name.get_ref())
        } else {
            name.get_ref().to_string()
        };
        let key = if prefix.is_empty() { quoted } else { format!("{prefix}.{quoted}") };
        match (place.get_ref().as_table(), value.as_table()) {
            (Some(places), Some(values)) if !values.is_empty() => flatten(&key, places, values, each),
            _ => each(key, name.span().start, value),
        }
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Environment variables of ours start with this; two underscores stand for a dot.
pub(super) const ENV_PREFIX: &str = "FOREBAY__";

/// The assignments of the environment, ordered by name so that messages do not depend on its order. A variable that
/// was almost ours (`FOREBAY_DATA_DIR`) is one of an unknown key: what is ignored in silence is missed for long.
pub(super) fn of_env(env: &[(OsString, OsString)]) -> Vec<Assignment> {
    let mut found: Vec<Assignment> = env
        .iter()
        .filter_map(|(name, value)| {
            let name = name.to_string_lossy();
            let key = match name.strip_prefix(ENV_PREFIX) {
                Some(rest) => rest.to_lowercase().replace("__", "."),
                None => almost(&name)?,
            };
            let given = value.to_str().map_or(Given::NotText, |text| Given::Text(text.to_owned()));
            Some(Assignment { key, given, origin: Origin::Env(name.into_owned()) })
        })
        .collect();
    found.sort_by(|a, b| (&a.key, a.origin.to_string()).cmp(&(&b.key, b.origin.to_string())));
    found
}

/// The key that a name with single underscores means, when it begins with a section of ours.
fn almost(name: &str) -> Option<String> {
    let rest = name.strip_prefix("FOREBAY_")?.to_lowercase();
    let (section, key) = rest.split_once('_')?;
    let ours = super::DEFAULTS.contains(&format!("\n[{section}]\n"));
    // Never a setting's own spelling: it is refused, with the right one.
    (ours && !key.starts_with('_')).then(|| format!("{section}_{key}"))
}

/// Settings that the environment gives under two spellings with different values.
pub(super) fn twice(env: &[Assignment]) -> Vec<Problem> {
    let differ = |pair: &&[Assignment]| pair[0].key == pair[1].key && pair[0].given != pair[1].given;
    let problem = |pair: &[Assignment]| Problem::Twice {
        key: pair[0].key.clone(),
        names: [pair[0].origin.to_string(), pair[1].origin.to_string()],
    };
    env.windows(2).filter(differ).map(problem).collect()
}

/// The assignments of flags, in the order typed; the last one of a key holds.
pub(super) fn of_flags(flags: &[Flag]) -> Vec<Assignment> {
    let assign = |flag: &Flag| Assignment {
        key: flag.key.clone(),
        given: Given::Text(flag.value.clone()),
        origin: Origin::Flag(flag.typed.clone()),
    };
    flags.iter().map(assign).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<(String, String)> {
        let found = of_file(text, Path::new("f.toml")).unwrap();
        found.into_iter().map(|a| (a.key, a.origin.to_string())).collect()
    }

    #[test]
    fn every_leaf_is_found_with_its_line() {
        let text =
            "\u{feff}data.dir = 'x'\n\n[model]\nname = \"a\"\n[model.extra]\ny = 1\n[empty]\n\"a.b\" = 1\n";
        let expected = [("data.dir", 1), ("model.name", 4), ("model.extra.y", 6), ("empty.\"a.b\"", 8)];
        let expected: Vec<_> =
            expected.iter().map(|(key, line)| (key.to_string(), format!("f.toml:{line}"))).collect();
        assert_eq!(keys(text), expected);
        assert_eq!(keys("\n[modle]\n"), [("modle".to_string(), "f.toml:2".to_string())]);
    }

    #[test]
    fn a_syntax_error_names_its_line_and_quotes_nothing() {
        let problem = of_file("[sink]\npassword = hunter2\n", Path::new("f.toml")).unwrap_err().to_string();
        assert!(problem.starts_with("f.toml:2 is not valid TOML"), "{problem}");
        assert!(!problem.contains("hunter2"), "{problem}");
    }
}
