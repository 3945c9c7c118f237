//! Style that matters is a test: who may know whom, one door a library, files that can be read in one sitting,
//! and a page and a settings file that say what the code does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

const LINES_MAX: usize = 400;

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A Rust file of ours: its path from the root, its room (the module under `src/`), its lines without comments.
struct File {
    path: String,
    room: String,
    text: String,
    lines: Vec<String>,
}

fn files_under(folder: &str) -> Vec<File> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for path in entries.map(|entry| entry.unwrap().path()) {
            match path.extension() {
                _ if path.is_dir() => walk(&path, found),
                Some(ext) if ext == "rs" => found.push(path),
                _ => {}
            }
        }
    }
    let mut paths = Vec::new();
    walk(&root().join(folder), &mut paths);
    paths.sort();
    let file = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let inside = path.strip_prefix(root().join(folder)).unwrap();
        let room = inside.components().next().unwrap().as_os_str().to_string_lossy().replace(".rs", "");
        let path = path.strip_prefix(root()).unwrap().display().to_string();
        let lines = text.lines().map(without_comment).collect();
        File { path, room, text, lines }
    };
    paths.into_iter().map(file).collect()
}

/// The line up to a `//`; one inside a string (`https://`) is kept because a colon stands before it.
fn without_comment(line: &str) -> String {
    let comment = line.match_indices("//").find(|(at, _)| !line[..*at].ends_with(':'));
    comment.map_or(line, |(at, _)| &line[..at]).to_owned()
}

/// The lines of the fenced block `name` of ARCHITECTURE.md as (words before the colon, words after it).
fn block(page: &str, name: &str) -> Vec<(Vec<String>, BTreeSet<String>)> {
    let fence = format!("```{name}\n");
    let (_, rest) = page.split_once(&fence).unwrap_or_else(|| panic!("ARCHITECTURE.md has no block {name}"));
    let (body, _) = rest.split_once("```").unwrap();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    body.lines()
        .map(|line| line.split_once(':').unwrap_or_else(|| panic!("no colon in {line:?}")))
        .map(|(left, right)| (words(left), words(right).into_iter().collect()))
        .collect()
}

/// Rooms that a file names by `crate::room` or `forebay::room`, in groups too: `use crate::{a, b::{c, d}}`.
fn rooms_named(lines: &[String]) -> BTreeSet<String> {
    let text = lines.join("\n");
    let mut found = BTreeSet::new();
    for (at, prefix) in ["crate::", "forebay::"].iter().flat_map(|prefix| text.match_indices(prefix)) {
        if text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        found.extend(first_segments(&text[at + prefix.len()..]));
    }
    found
}

/// The first segment of a path, or of each path in a group.
fn first_segments(path: &str) -> Vec<String> {
    let name =
        |text: &str| text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let mut depth = 0;
    let mut names = vec![name(group)];
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(name(&group[at + 1..])),
            _ => {}
        }
    }
    names.retain(|name: &String| !name.is_empty());
    names
}

fn assert_none(faults: &str) {
    assert!(faults.is_empty(), "\n{faults}");
}

#[test]
fn every_arrow_is_drawn_on_the_page() {
    let arrows: BTreeMap<String, BTreeSet<String>> = block(&read("ARCHITECTURE.md"), "arrows")
        .into_iter()
        .map(|(left, may)| (left[1].clone(), may))
        .collect();
    let mut faults = String::new();
    for file in files_under("src").iter().filter(|file| file.room != "lib") {
        let Some(may) = arrows.get(&file.room) else {
            writeln!(faults, "{}: room `{}` is not on the page", file.path, file.room).unwrap();
            continue;
        };
        for known in rooms_named(&file.lines) {
            // Not a room: a macro or an item of the crate root.
            // Unit tests in a file of their own may use the kit.
            let test_kit = known == "testkit" && file.path.ends_with("tests.rs");
            if arrows.contains_key(&known) && known != file.room && !may.contains(&known) && !test_kit {
                writeln!(faults, "{}: `{}` may not know `{known}`", file.path, file.room).unwrap();
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn arrows_on_the_page_point_down() {
    let lines = block(&read("ARCHITECTURE.md"), "arrows");
    let order: Vec<&String> = lines.iter().map(|(left, _)| &left[1]).collect();
    let place = |room: &String| order.iter().position(|other| *other == room);
    for (left, may) in &lines {
        for known in may {
            assert!(place(known) < place(&left[1]), "`{}` knows `{known}`, which stands after it", left[1]);
            assert!(place(known).is_some() && known != "testkit", "`{}` knows `{known}`", left[1]);
            let level = place(known).map(|at| &lines[at].0[0]);
            assert!(
                left[0] != "1" || level.is_some_and(|level| level == "0"),
                "`{}` knows its sibling `{known}`",
                left[1]
            );
        }
    }
}

#[test]
fn each_library_has_one_door() {
    let mut faults = String::new();
    let files = files_under("src");
    for (library, rooms) in block(&read("ARCHITECTURE.md"), "doors") {
        for file in files.iter().filter(|file| !rooms.contains(&file.room)) {
            let says = |line: &String| {
                line.match_indices(&*library[0]).any(|(at, name)| {
                    let before = line[..at].chars().next_back();
                    let word = |c: char| c.is_alphanumeric() || c == '_';
                    !before.is_some_and(|c| word(c) || c == '.' || c == '"')
                        && line[at + name.len()..].starts_with("::")
                }) || line.trim() == format!("use {};", library[0])
            };
            if let Some(at) = file.lines.iter().position(says) {
                writeln!(faults, "{}:{}: only {rooms:?} may say {}", file.path, at + 1, library[0]).unwrap();
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn files_stay_short_and_finished() {
    let mut faults = String::new();
    for file in files_under("src") {
        let count = file.text.lines().count();
        if count > LINES_MAX {
            writeln!(faults, "{}: {count} lines; split it before {LINES_MAX}", file.path).unwrap();
        }
        for (at, line) in file.lines.iter().enumerate() {
            if let Some(left) =
                ["dbg!(", "todo!(", "unimplemented!("].iter().find(|left| line.contains(**left))
            {
                writeln!(faults, "{}:{}: {left}…)", file.path, at + 1).unwrap();
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn every_test_named_on_the_page_exists() {
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = read(page);
        for name in text.split(|c: char| c.is_whitespace() || "`()[],;".contains(c)) {
            let is_test = name.starts_with("tests/") && name.ends_with(".rs") && !name.contains('*');
            assert!(!is_test || root().join(name).exists(), "{page} names {name}, which does not exist");
        }
    }
}

#[test]
fn a_panic_unwinds_in_every_profile() {
    // The supervisor restarts a stage that panicked; with abort there is nothing left to restart it.
    let manifest = read("Cargo.toml").parse::<toml::Table>().unwrap();
    for (name, profile) in manifest["profile"].as_table().unwrap() {
        assert!(profile.get("panic").is_none_or(|panic| panic.as_str() == Some("unwind")), "profile.{name}");
    }
}

#[test]
fn every_setting_says_what_it_is_for() {
    // A comment above the key, or above the run of keys it belongs to; a blank line or a section ends the run.
    let mut explained = false;
    for (at, line) in read("config.toml").lines().enumerate() {
        match line.chars().next() {
            Some('#') => explained = true,
            None | Some('[') => explained = false,
            Some(_) => assert!(explained, "config.toml:{}: no comment above {line:?}", at + 1),
        }
    }
}

#[test]
fn the_settings_file_and_the_structs_have_the_same_keys() {
    // Every key without a field, and every field without a key, fails the strict parse.
    let defaults = read("config.toml");
    let parsed = toml::from_str::<forebay::config::Config>(&defaults);
    assert_eq!(parsed.err().map(|error| error.message().to_owned()), None);
    let keys = defaults.parse::<toml::Table>().unwrap();
    for (section, table) in &keys {
        for key in table.as_table().unwrap().keys() {
            let mut fewer = keys.clone();
            fewer[section].as_table_mut().unwrap().remove(key);
            let parsed = fewer.try_into::<forebay::config::Config>();
            assert!(parsed.is_err(), "{section}.{key} has a default beside config.toml");
        }
    }
}

#[test]
fn the_eyes_of_this_file_see() {
    let lines = [
        "use crate::{chunk::{Chunk, Digest}, error::Class};",
        "let x = crate::sink::Row; // crate::queue::Q",
    ];
    let lines: Vec<String> = lines.map(without_comment).to_vec();
    assert_eq!(rooms_named(&lines).into_iter().collect::<Vec<_>>(), ["chunk", "error", "sink"]);
    assert_eq!(without_comment("\"https://a\" // b"), "\"https://a\" ");
    assert_eq!(first_segments("{\n    a,\n    b::{c, d},\n}"), ["a", "b"]);
}
