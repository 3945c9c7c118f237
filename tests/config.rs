//! The shipped settings load, layers win in order, and what is wrong is said all at once, with its place.

use std::path::PathBuf;

use forebay::config::{Config, ConfigError, DEFAULTS, Flag, Loaded, Origin, Problem, Request};

/// A world of its own: a folder, an environment, flags.
struct World {
    folder: tempfile::TempDir,
    request: Request,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let request = Request { dir: folder.path().to_owned(), ..Request::default() };
        Self { folder, request }
    }

    fn file(self, name: &str, text: impl AsRef<[u8]>) -> Self {
        std::fs::write(self.folder.path().join(name), text).unwrap();
        self
    }

    fn named(mut self, name: &str) -> Self {
        self.request.file = Some(name.into());
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.request.env.push((name.into(), value.into()));
        self
    }

    fn set(mut self, key: &str, value: &str) -> Self {
        let typed = format!("--set {key}");
        self.request.flags.push(Flag { key: key.into(), value: value.into(), typed });
        self
    }

    fn load(&self) -> Result<Loaded, ConfigError> {
        Config::load(&self.request)
    }

    fn problems(&self) -> Vec<String> {
        self.load().unwrap_err().problems.iter().map(ToString::to_string).collect()
    }
}

fn origin(loaded: &Loaded, key: &str) -> Origin {
    loaded.origins.iter().find(|setting| setting.key == key).unwrap().origin.clone()
}

#[test]
fn the_shipped_file_loads_and_says_so() {
    let loaded = World::new().load().unwrap();
    assert_eq!(loaded.config.data.dir, PathBuf::from("./forebay-data"));
    assert_eq!(loaded.config.model.name, "bge-m3");
    assert_eq!(loaded.config.retry.max_attempts, 3);
    assert_eq!(loaded.file, None);
    assert!(loaded.origins.iter().all(|setting| setting.origin == Origin::Default));
    let keys = DEFAULTS.lines().filter(|line| !line.starts_with('#') && line.contains(" = ")).count();
    assert_eq!(loaded.origins.len(), keys, "`origins` lists every key of config.toml");
}

#[test]
fn a_copy_of_the_shipped_file_changes_nothing() {
    let copy = World::new().file("forebay.toml", DEFAULTS).load().unwrap();
    assert_eq!(copy.config, World::new().load().unwrap().config);
    assert_eq!(copy.file, Some("forebay.toml".into()));
}

#[test]
fn later_layers_win_and_each_is_named() {
    let world = World::new()
        .file("forebay.toml", "[retry]\nmax_attempts = 4\nbase_ms = 100\n\n[model]\nname = \"a\"\n")
        .env("FOREBAY__RETRY__BASE_MS", "200")
        .env("FOREBAY__MODEL__NAME", "b")
        .env("HOME", "/nowhere")
        .set("model.name", "c")
        .set("model.name", "d");
    let loaded = world.load().unwrap();
    assert_eq!(loaded.config.retry.max_attempts, 4);
    assert_eq!(loaded.config.retry.base_ms, 200);
    assert_eq!(loaded.config.model.name, "d");
    assert_eq!(origin(&loaded, "retry.max_attempts").to_string(), "forebay.toml:2");
    assert_eq!(origin(&loaded, "retry.base_ms").to_string(), "FOREBAY__RETRY__BASE_MS");
    assert_eq!(origin(&loaded, "model.name").to_string(), "--set model.name");
    assert_eq!(origin(&loaded, "retry.cap_ms").to_string(), "default");
}

#[test]
fn a_named_file_takes_the_place_of_the_default_one() {
    let world = World::new()
        .file("forebay.toml", "[retry]\nmax_attempts = 4\n")
        .file("other.toml", "[retry]\nbase_ms = 1\n")
        .named("other.toml");
    let retry = world.load().unwrap().config.retry;
    assert_eq!((retry.max_attempts, retry.base_ms), (3, 1));
}

#[test]
fn a_named_file_that_is_missing_is_an_error() {
    let problems = World::new().named("absent.toml").problems();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("cannot read absent.toml: "), "{problems:?}");
    assert!(problems[0].ends_with("check the path given to --config"), "{problems:?}");
}

#[test]
fn a_file_that_is_no_text_or_no_toml_is_an_error_with_its_line() {
    let problems = World::new().file("forebay.toml", b"\xff\xfe[\0m\0").problems();
    assert!(problems[0].starts_with("cannot read forebay.toml: "), "{problems:?}");
    let problems = World::new().file("forebay.toml", "[data]\ndir = \"x\"\nname bge\n").problems();
    assert!(problems[0].starts_with("forebay.toml:3 is not valid TOML: "), "{problems:?}");
    let problems = World::new().file("forebay.toml", "[data]\ndir = \"x\"\ndir = \"y\"\n").problems();
    assert!(problems[0].starts_with("forebay.toml:3 is not valid TOML: duplicate key"), "{problems:?}");
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_one() {
    let world = World::new()
        .file("forebay.toml", "# mine\n[model]\nnmae = \"x\"\n[pipelin]\n[retry]\n[wholly]\nunlike = 1\n")
        .env("FOREBAY__DATA__DRI", "x")
        .set("name", "x");
    assert_eq!(
        world.problems(),
        [
            "unknown key `model.nmae` in forebay.toml:3; did you mean `model.name`?",
            "unknown key `pipelin` in forebay.toml:4; `forebay check` lists every key",
            "unknown key `wholly.unlike` in forebay.toml:7; `forebay check` lists every key",
            "unknown key `data.dri` in FOREBAY__DATA__DRI; did you mean `FOREBAY__DATA__DIR`?",
            "unknown key `name` in --set name; did you mean `model.name`?",
        ]
    );
}

#[test]
fn every_bad_value_is_named_with_what_was_expected_and_where_it_stands() {
    let world = World::new()
        .file(
            "forebay.toml",
            "model = 3\n[retry]\nmax_attempts = 0\ncap_ms = -1\n[data]\ndir = 7\n[sink]\nstore_text = \"yes\"\n",
        )
        .env("FOREBAY__MODEL__OUTPUTS", "dense, dens")
        .env("FOREBAY__LIMITS__MAX_DEAD_FRACTION", "nan")
        .set("model.device", "gpu")
        .set("sink.kind", "sqlit")
        .set("queue.window_chunks", "many");
    assert_eq!(
        world.problems(),
        [
            "`model`: expected a section of settings (`[model]`, or `model.NAME`), received 3 (from forebay.toml:1)",
            "`retry.max_attempts`: expected an integer from 1 to 100, received 0 (from forebay.toml:3)",
            "`retry.cap_ms`: expected an integer from 1 to 86400000, received -1 (from forebay.toml:4)",
            "`data.dir`: expected a name or a path of this machine, not an address, received 7 (from forebay.toml:6)",
            "`sink.store_text`: expected true or false, received \"yes\" (from forebay.toml:8)",
            "`limits.max_dead_fraction`: expected a number from 0 to 1, received \"nan\" (from FOREBAY__LIMITS__MAX_DEAD_FRACTION)",
            "`model.outputs`: expected a list of at least one of \"dense\", \"sparse\", \"multi\", received \"dense, dens\" (from FOREBAY__MODEL__OUTPUTS)",
            "`model.device`: expected \"auto\", \"cpu\", \"cuda\" or \"cuda:N\" (N the number of the GPU), received \"gpu\" (from --set model.device)",
            "`sink.kind`: expected one of \"sqlite\", \"null\", received \"sqlit\" (from --set sink.kind)",
            "`queue.window_chunks`: expected an integer from 1 to 10000000, received \"many\" (from --set queue.window_chunks)",
        ]
    );
    let whole = world.load().unwrap_err().to_string();
    assert!(whole.starts_with("configuration: 10 things to repair:\n  - `model`"), "{whole}");
    assert!(whole.ends_with("repair it, then run `forebay check`"), "{whole}");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let world = World::new()
        .set("retry.cap_ms", "100")
        .set("breaker.give_up_after_s", "1")
        .set("source.chunk_tokens", "64")
        .set("source.meta_field", "text");
    assert_eq!(
        world.problems(),
        [
            "`retry.cap_ms`: expected at least `retry.base_ms` (500), received 100 (from --set retry.cap_ms)",
            "`breaker.give_up_after_s`: expected at least `breaker.open_s` (5), received 1 (from --set breaker.give_up_after_s)",
            "`source.overlap_tokens`: expected less than `source.chunk_tokens` (64), received 64 (from default)",
            "`source.meta_field`: expected names that no other field of a record has, received \"text\" (from --set source.meta_field)",
        ]
    );
}

#[test]
fn every_integer_is_bounded_so_that_no_time_or_size_overflows() {
    for setting in World::new().load().unwrap().origins.iter().filter(|s| s.value.is_integer()) {
        for value in ["-1", "9223372036854775807", "9223372036854775808", "1.5"] {
            let outcome = World::new().set(&setting.key, value).load();
            let bounded =
                matches!(&outcome, Err(error) if matches!(error.problems[0], Problem::Value { .. }));
            assert!(bounded, "{} = {value}", setting.key);
        }
    }
}

#[test]
fn environment_values_that_are_not_utf8_are_refused_for_us_and_ignored_for_others() {
    use std::os::unix::ffi::OsStringExt;
    let bad = std::ffi::OsString::from_vec(vec![0xff]);
    let mut world = World::new();
    world.request.env = vec![("OTHER".into(), bad.clone()), (bad.clone(), "x".into())];
    world.load().unwrap();
    world.request.env.push(("FOREBAY__DATA__DIR".into(), bad));
    let expected = "`data.dir`: expected a name or a path of this machine, not an address, received bytes that are not UTF-8 (from FOREBAY__DATA__DIR)";
    assert_eq!(world.problems(), [expected]);
}

#[test]
fn no_secret_is_shown_even_when_it_stands_in_the_wrong_place() {
    let world = World::new()
        .file("forebay.toml", "[sink]\npassword = \"hunter2\"\n")
        .env("FOREBAY__SINK__TOKEN", "hunter2")
        .set("sink.secret", "hunter2");
    let error = world.load().unwrap_err();
    assert_eq!(error.problems.len(), 3);
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
}

#[test]
fn the_reference_page_is_what_the_settings_are() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/settings.md");
    if std::env::var_os("FOREBAY_WRITE_PAGE").is_some() {
        std::fs::write(&path, forebay::config::page()).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        page == forebay::config::page(),
        "docs/settings.md is behind config.toml or the rules. Make it anew: \
         FOREBAY_WRITE_PAGE=1 cargo test --release --features testkit --test config page"
    );
}

#[test]
fn the_reference_page_names_every_setting_with_its_environment_form_and_a_comment() {
    let page = forebay::config::page();
    for setting in World::new().load().unwrap().origins {
        let (_, rest) = page.split_once(&format!("### `{}`\n\n", setting.key)).expect(&setting.key);
        let entry = rest.split("\n###").next().unwrap();
        assert!(!entry.starts_with('\n'), "{}: no comment", setting.key);
        assert!(entry.contains(&format!("- default: `{}`", setting.value)), "{entry}");
        let env = format!("FOREBAY__{}", setting.key.replace('.', "__").to_uppercase());
        assert!(entry.contains(&env), "{entry}");
        // What it says is what is read.
        let value = setting.value.as_str().map_or_else(|| setting.value.to_string(), str::to_owned);
        let loaded = World::new().env(&env, &value).load().unwrap();
        assert_eq!(origin(&loaded, &setting.key), Origin::Env(env));
        assert_eq!(loaded.config, World::new().load().unwrap().config, "{}", setting.key);
    }
}

#[test]
fn names_carry_their_units() {
    // A number is a count of what its name says, or its unit ends the name.
    const UNITS: [&str; 7] = ["_s", "_ms", "_mb", "_bytes", "_days", "_hours", "_h"];
    const COUNTS: [&str; 12] = [
        "max_length",
        "_tokens",
        "threads",
        "_chunks",
        "batches_in_flight",
        "restarts_max",
        "max_attempts",
        "threshold",
        "alert_depth",
        "max_dead_fraction",
        "max_cost",
        "max_redrives",
    ];
    for setting in World::new().load().unwrap().origins {
        let numeric = setting.value.is_integer() || setting.value.is_float();
        let named = |end: &&str| setting.key.ends_with(*end);
        assert!(!numeric || UNITS.iter().chain(&COUNTS).any(named), "{}: no unit", setting.key);
    }
}

#[test]
fn an_empty_file_and_one_of_comments_change_nothing() {
    for text in ["", "\u{feff}", "# nothing\n\n", "[model]\n"] {
        let loaded = World::new().file("forebay.toml", text).load().unwrap();
        assert_eq!(loaded.config, World::new().load().unwrap().config);
        assert_eq!(loaded.file, Some("forebay.toml".into()));
    }
}

#[test]
fn dotted_keys_and_sections_are_the_same_and_a_setting_given_twice_is_refused() {
    let dotted = World::new().file("forebay.toml", "retry.max_attempts = 4\nmodel.\"name\" = \"instant\"\n");
    let loaded = dotted.load().unwrap();
    assert_eq!((loaded.config.retry.max_attempts, loaded.config.model.name.as_str()), (4, "instant"));
    assert_eq!(origin(&loaded, "retry.max_attempts").to_string(), "forebay.toml:1");
    for text in [
        "[retry]\nmax_attempts = 4\nmax_attempts = 5\n",
        "retry.max_attempts = 4\n[retry]\nmax_attempts = 5\n",
        "[retry]\nmax_attempts = 4\n[model]\n[retry]\nbase_ms = 5\n",
    ] {
        let problems = World::new().file("forebay.toml", text).problems();
        assert!(problems.len() == 1 && problems[0].contains("is not valid TOML"), "{text:?}: {problems:?}");
    }
}

#[test]
fn the_environment_takes_either_case_and_names_what_it_took() {
    let loaded = World::new().env("FOREBAY__retry__Max_Attempts", "7").load().unwrap();
    assert_eq!(loaded.config.retry.max_attempts, 7);
    assert_eq!(origin(&loaded, "retry.max_attempts").to_string(), "FOREBAY__retry__Max_Attempts");
    // One setting under two spellings is a contradiction unless both say the same.
    let world =
        World::new().env("FOREBAY__RETRY__MAX_ATTEMPTS", "7").env("FOREBAY__retry__max_attempts", "8");
    let problems = world.problems();
    assert!(
        problems[0].contains("given twice") && problems[0].contains("retry.max_attempts"),
        "{problems:?}"
    );
    let same = World::new().env("FOREBAY__RETRY__MAX_ATTEMPTS", "7").env("FOREBAY__retry__max_attempts", "7");
    assert_eq!(same.load().unwrap().config.retry.max_attempts, 7);
    // A name that is almost ours is told, not ignored.
    let problems = World::new().env("FOREBAY_DATA_DIR", "x").problems();
    assert!(problems[0].contains("FOREBAY__DATA__DIR"), "{problems:?}");
}

#[test]
fn lists_of_the_environment_are_read_with_commas_or_as_toml() {
    for text in ["key, doc_id", "[\"key\", 'doc_id']", "key,doc_id,"] {
        let loaded = World::new().env("FOREBAY__SOURCE__ID_FIELDS", text).load().unwrap();
        assert_eq!(loaded.config.source.id_fields, ["key", "doc_id"], "{text}");
    }
    for text in ["", " , ", "[1]", "[\"key\""] {
        assert_eq!(World::new().env("FOREBAY__SOURCE__ID_FIELDS", text).problems().len(), 1, "{text:?}");
    }
}
