//! The settings of all parts, composed from layers: `config.toml` as compiled in, a file, the environment,
//! flags; later ones win. Pure over what is handed in, but for reading the file. There is no default beside
//! `config.toml`, and nothing of it is accepted in silence: unknown keys and bad values are refused together.

mod layer;
mod origin;
mod page;
mod problem;
mod rule;
mod suggest;

use std::{
    collections::HashSet,
    ffi::OsString,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

use self::{
    layer::{Assignment, ENV_PREFIX, Given},
    rule::{rule, typed},
};
pub use self::{
    origin::{MASK, Origin, is_secret, may_hold_secret},
    page::page,
    problem::{ConfigError, Problem},
};

/// The lowest layer, comments included: every setting and its default.
pub const DEFAULTS: &str = include_str!("../../config.toml");

/// The file that is read when none is named and it exists.
pub const DEFAULT_FILE: &str = "forebay.toml";

/// A setting given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Dotted key, for example `data.dir`.
    pub key: String,
    /// Its value as typed.
    pub value: String,
    /// What was typed, for messages: `--data-dir`, `--set data.dir`.
    pub typed: String,
}

/// All that a configuration is made of.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Folder in which files are looked for; empty: where the process stands.
    pub dir: PathBuf,
    /// `--config`. A named file must exist; without a name, [`DEFAULT_FILE`] is read if it exists.
    pub file: Option<PathBuf>,
    /// The environment; what does not start with `FOREBAY__` is ignored.
    pub env: Vec<(OsString, OsString)>,
    /// Flags, in the order typed.
    pub flags: Vec<Flag>,
}

/// The settings of all parts.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `data.*`
    pub data: crate::folder::Settings,
    /// `model.*`
    pub model: crate::embed::Settings,
    /// `source.*`
    pub source: crate::source::Settings,
    /// `queue.*`
    pub queue: crate::queue::Settings,
    /// `pipeline.*`
    pub pipeline: crate::pipeline::line::Settings,
    /// `retry.*`
    pub retry: crate::queue::policy::Settings,
    /// `breaker.*`
    pub breaker: crate::pipeline::circuit::Settings,
    /// `dlq.*`
    pub dlq: crate::queue::dlq::Settings,
    /// `sink.*`
    pub sink: crate::sink::Settings,
    /// `limits.*`
    pub limits: crate::pipeline::line::Limits,
}

/// One setting as it holds, for `check`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Setting {
    /// Dotted key.
    pub key: String,
    /// Its value; [`MASK`] when it is a secret.
    pub value: Value,
    /// Where it came from.
    pub origin: Origin,
}

/// A configuration and where all of it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// Every setting, in the order of `config.toml`.
    pub origins: Vec<Setting>,
    /// The file that was read, if one was.
    pub file: Option<PathBuf>,
}

impl Config {
    /// Composes the layers.
    ///
    /// ```
    /// use forebay::config::{Config, Flag, Request};
    /// let set = Flag { key: "retry.max_attempts".into(), value: "5".into(), typed: "--set retry.max_attempts".into() };
    /// let loaded = Config::load(&Request { flags: vec![set], ..Request::default() })?;
    /// assert_eq!(loaded.config.retry.max_attempts, 5);
    /// let setting = loaded.origins.iter().find(|setting| setting.key == "retry.max_attempts").unwrap();
    /// assert_eq!(setting.origin.to_string(), "--set retry.max_attempts");
    /// # Ok::<(), forebay::config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// Everything that is wrong in any layer, at once.
    pub fn load(request: &Request) -> Result<Loaded, ConfigError> {
        let mut problems = Vec::new();
        let (file, mut given) = read_file(request, &mut problems);
        let env = layer::of_env(&request.env);
        problems.extend(layer::twice(&env));
        given.extend(env);
        given.extend(layer::of_flags(&request.flags));

        let mut settings = defaults();
        for assignment in &given {
            if let Err(problem) = assign(&mut settings, assignment) {
                problems.push(problem);
            }
        }
        problems.extend(contradictions(&settings));
        if !problems.is_empty() {
            return Err(ConfigError { problems });
        }
        let config = compose(&settings)
            .map_err(|error| ConfigError { problems: vec![Problem::Build(error.message().to_owned())] })?;
        Ok(Loaded { config, origins: settings.into_iter().map(masked).collect(), file })
    }
}

/// The compiled-in layer.
fn defaults() -> Vec<Setting> {
    let given =
        layer::of_file(DEFAULTS, Path::new("config.toml")).expect("config.toml is TOML: tests/config.rs");
    given
        .into_iter()
        .filter_map(|Assignment { key, given, .. }| match given {
            Given::Typed(value) => Some(Setting { key, value, origin: Origin::Default }),
            Given::Text(_) | Given::NotText => None,
        })
        .collect()
}

/// The file layer: the named file, or the default one if it is there.
fn read_file(request: &Request, problems: &mut Vec<Problem>) -> (Option<PathBuf>, Vec<Assignment>) {
    let name = request.file.clone().unwrap_or_else(|| DEFAULT_FILE.into());
    let read = std::fs::read_to_string(request.dir.join(&name));
    let outcome = match read {
        Ok(text) => layer::of_file(&text, &name),
        Err(error) if request.file.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return (None, Vec::new());
        }
        Err(error) => Err(Problem::Unreadable { path: name.clone(), why: error.to_string() }),
    };
    match outcome {
        Ok(given) => (Some(name), given),
        Err(problem) => {
            problems.push(problem);
            (None, Vec::new())
        }
    }
}

/// Puts one assignment over what holds so far.
fn assign(settings: &mut [Setting], assignment: &Assignment) -> Result<(), Problem> {
    let Assignment { key, given, origin } = assignment;
    let Some(setting) = settings.iter_mut().find(|setting| setting.key == *key) else {
        return unknown(settings, assignment);
    };
    let rule = rule(key);
    match typed(given, &setting.value).filter(|value| rule.takes(value)) {
        Some(value) => {
            setting.value = value;
            setting.origin = origin.clone();
            Ok(())
        }
        None => Err(Problem::Value {
            key: key.clone(),
            expected: rule.expectation(&setting.value),
            received: received(key, given),
            origin: origin.clone(),
        }),
    }
}

/// A key that is no setting. An empty section of ours is nothing to complain of.
fn unknown(settings: &[Setting], assignment: &Assignment) -> Result<(), Problem> {
    let Assignment { key, given, origin } = assignment;
    let section = settings.iter().any(|setting| setting.key.split('.').next() == Some(key));
    if section && matches!(given, Given::Typed(Value::Table(_))) {
        return Ok(());
    }
    if section {
        return Err(Problem::Value {
            key: key.clone(),
            expected: format!("a section of settings (`[{key}]`, or `{key}.NAME`)"),
            received: received(key, given),
            origin: origin.clone(),
        });
    }
    let as_written = |key: &str| match origin {
        Origin::Env(_) => format!("{ENV_PREFIX}{}", key.replace('.', "__").to_uppercase()),
        _ => key.to_owned(),
    };
    let nearest = suggest::nearest(key, settings.iter().map(|setting| setting.key.as_str()));
    Err(Problem::Unknown { key: key.clone(), origin: origin.clone(), nearest: nearest.map(as_written) })
}

/// A value as it is shown in a message: short, and never a secret.
fn received(key: &str, given: &Given) -> String {
    const CHARS_MAX: usize = 80;
    let address = match given {
        Given::Typed(Value::String(text)) | Given::Text(text) => may_hold_secret(text),
        _ => false,
    };
    if address || is_secret(key) {
        return MASK.to_owned();
    }
    let shown = match given {
        Given::Typed(value) => value.to_string(),
        Given::Text(text) => format!("{text:?}"),
        Given::NotText => "bytes that are not UTF-8".to_owned(),
    };
    match shown.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{} …", &shown[..end]),
        None => shown,
    }
}

/// Pairs of settings that make no sense together.
fn contradictions(settings: &[Setting]) -> Vec<Problem> {
    let of = |key: &str| settings.iter().find(|setting| setting.key == key);
    let whole = |key| of(key).and_then(|setting| setting.value.as_integer()).unwrap_or(0);
    let mut problems = Vec::new();
    let mut refuse = |key: &str, expected: String| {
        if let Some(Setting { value, origin, .. }) = of(key) {
            let received = received(key, &Given::Typed(value.clone()));
            problems.push(Problem::Value { key: key.into(), expected, received, origin: origin.clone() });
        }
    };
    let at_least = [("retry.cap_ms", "retry.base_ms"), ("breaker.give_up_after_s", "breaker.open_s")];
    for (key, floor) in at_least {
        if whole(key) < whole(floor) {
            refuse(key, format!("at least `{floor}` ({})", whole(floor)));
        }
    }
    let chunk = whole("source.chunk_tokens");
    if chunk > 0 && whole("source.overlap_tokens") >= chunk {
        refuse("source.overlap_tokens", format!("less than `source.chunk_tokens` ({chunk})"));
    }
    let mut seen = HashSet::new();
    for key in ["source.id_fields", "source.text_field", "source.chunk_index_field", "source.meta_field"] {
        let names = match of(key).map(|setting| &setting.value) {
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
            Some(Value::String(name)) => vec![name.as_str()],
            _ => vec![],
        };
        if !names.into_iter().all(|name| seen.insert(name)) {
            refuse(key, "names that no other field of a record has".into());
        }
    }
    problems
}

/// The settings as structs.
fn compose(settings: &[Setting]) -> Result<Config, toml::de::Error> {
    let mut root = Table::new();
    for Setting { key, value, .. } in settings {
        let (section, name) = key.split_once('.').unwrap_or(("", key));
        let section = root.entry(section).or_insert_with(|| Value::Table(Table::new()));
        if let Some(table) = section.as_table_mut() {
            table.insert(name.to_owned(), value.clone());
        }
    }
    Value::Table(root).try_into()
}

fn masked(setting: Setting) -> Setting {
    let value = if is_secret(&setting.key) { Value::String(MASK.into()) } else { setting.value };
    Setting { value, ..setting }
}
