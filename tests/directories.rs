//! Folders of text, Markdown and records, as a user has them.

mod common;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::Path,
};

use common::{Home, record};

/// A home with a folder `corpus` of these files.
fn corpus(files: &[(&str, &[u8])]) -> Home {
    let home = Home::new();
    for (name, content) in files {
        put(&home, name, content);
    }
    home
}

fn put(home: &Home, name: &str, content: impl AsRef<[u8]>) {
    let path = home.at("corpus").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Ids in the sink.
fn ids(home: &Home) -> Vec<String> {
    let ids = home.texts().into_iter().map(|(key, _)| key.rsplit_once('#').unwrap().0.to_owned());
    ids.collect::<BTreeSet<_>>().into_iter().collect()
}

/// `(class, file name)` of the open letters.
fn open_letters(home: &Home) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let open = home.letters().into_iter().filter(|letter| letter["state"] == "open");
    let mut letters: Vec<_> = open
        .map(|letter| {
            let file = text(&letter["origin"]["source"]);
            (text(&letter["class"]), Path::new(&file).file_name().unwrap().to_string_lossy().into_owned())
        })
        .collect();
    letters.sort();
    letters
}

#[test]
fn a_folder_is_read_by_kind_and_again_embeds_nothing() {
    let packed = zstd::encode_all(&b"packed text"[..], 1).unwrap();
    let mut member = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut member, record("from-records", "a record").as_bytes()).unwrap();
    let home = corpus(&[
        ("read.me.md", "\u{feff}---\ntitle: T\n---\r\n# Front matter is text".as_bytes()),
        ("deep/er/notes.TXT", b"notes"),
        ("deep/packed.txt.zst", &packed),
        ("part-000.jsonl.gz", &member.finish().unwrap()),
        ("table.csv", b"id,text\n1,a\n"),
        ("picture.png", b"\x89PNG"),
        (".hidden.md", b"hidden"),
        (".git/notes.md", b"hidden"),
        (".gitignore", b"ignored.md\nbuild/\n"),
        ("ignored.md", b"ignored"),
        ("build/out.md", b"ignored"),
    ]);
    std::os::unix::fs::symlink("read.me.md", home.at("corpus/link.md")).unwrap();
    std::os::unix::fs::symlink("nowhere", home.at("corpus/dangling.md")).unwrap();
    let ran = home.forebay(&["run", "--json", "corpus"]).exits(0).says(&["files=4", "other kinds"]);
    assert_eq!(ran.report().numbers(["documents", "chunks", "dead", "skipped"]), [4, 4, 0, 0]);
    assert_eq!(ids(&home), ["deep/er/notes.TXT", "deep/packed.txt.zst", "from-records", "read.me.md"]);
    assert_eq!(home.texts()[3].1, "---\ntitle: T\n---\r\n# Front matter is text");
    let again = home.run(&["corpus"], 0);
    assert_eq!(again.numbers(["embedded", "passes", "chunks", "skipped"]), [0, 0, 0, 4]);
    home.run(&[], 0);
    home.holds(4);
}

#[test]
fn include_and_exclude_decide_by_name() {
    let home = corpus(&[
        ("a.md", b"a"),
        ("b.rst", b"b"),
        ("drafts/c.rst", b"c"),
        ("drafts/d.jsonl", record("d", "d").as_bytes()),
    ]);
    let sets = ["--set", "source.include=[\"*.rst\"]", "--set", "source.exclude=[\"drafts/\"]"];
    home.run(&[&sets[..], &["corpus"]].concat(), 0);
    assert_eq!(ids(&home), ["b.rst"]);
    home.forebay(&["run", "corpus", "--set", "source.include=[\"[z-a]\"]"])
        .exits(2)
        .says(&["source.include", "globs"]);
}

#[test]
fn a_text_file_may_be_named_by_itself() {
    let home = corpus(&[("notes.md", b"some notes"), ("page.html", b"<p>a page"), ("t.csv", b"a,b\n")]);
    home.run(&["corpus/notes.md"], 0);
    assert_eq!(home.texts(), [("notes.md#0".to_owned(), "some notes".to_owned())]);
    home.forebay(&["run", "corpus/page.html"]).exits(2).says(&["page.html", "source.include=[\"*.html\"]"]);
    home.run(&["--set", "source.include=[\"*.html\"]", "corpus/page.html"], 0);
    home.forebay(&["run", "corpus/t.csv"]).exits(2).says(&["t.csv", "JSON object a line"]);
    assert_eq!(ids(&home), ["notes.md", "page.html"]);
}

#[test]
fn what_is_wrong_with_a_file_costs_that_file_until_it_is_mended() {
    let home = corpus(&[
        ("blank.md", b" \n"),
        ("fine.md", b"fine"),
        ("latin.md", b"caf\xe9"),
        ("long.md", "x".repeat(5_000).as_bytes()),
    ]);
    let name = std::ffi::OsStr::from_bytes(b"odd\xff.md");
    fs::write(home.at("corpus").join(name), "odd").unwrap();
    let limit = ["--set", "limits.line_bytes=4096"];
    let report = home.run(&[&limit[..], &["corpus"]].concat(), 1);
    assert_eq!(report.numbers(["chunks", "unreadable", "dead"]), [1, 4, 4]);
    let expected = [
        ("bad_id", "odd\u{fffd}.md"),
        ("blank_text", "blank.md"),
        ("invalid_utf8", "latin.md"),
        ("line_too_long", "long.md"),
    ];
    let expected: Vec<_> =
        expected.iter().map(|(class, file)| ((*class).to_owned(), (*file).to_owned())).collect();
    assert_eq!(open_letters(&home), expected);
    let again = home.run(&[&limit[..], &["corpus"]].concat(), 1);
    assert_eq!(
        again.numbers(["embedded", "dead", "skipped"]),
        [0, 4, 1],
        "again: nothing new, nothing twice"
    );
    // The bytes of a file are no record: a redrive says what to do instead.
    let redriven = home.forebay(&["dlq", "redrive", "--all", "--json"]).exits(0).json();
    assert_eq!(redriven["redriven"], 0);
    assert!(redriven["staying"].to_string().contains("mend the file and run its folder again"), "{redriven}");
    let listed = home.forebay(&["dlq", "list"]).exits(0).stdout;
    assert!(listed.contains("corpus/latin.md latin.md (1 attempts)"), "{listed}");
    for name in ["blank.md", "latin.md"] {
        put(&home, name, "mended");
    }
    fs::remove_file(home.at("corpus").join(name)).unwrap();
    home.run(&["corpus"], 0);
    assert_eq!(open_letters(&home), []);
    home.holds(4);
}

#[test]
fn a_file_that_cannot_be_opened_makes_its_folder_incomplete() {
    let whole = zstd::encode_all("text without an end ".repeat(9_000).as_bytes(), 1).unwrap();
    let home = corpus(&[
        ("a.md", b"a"),
        ("cut.md.zst", &whole[..whole.len() / 2]),
        ("packed.md", b"\xfd7zXZ\0 packed"),
        ("z.md", b"z"),
        ("part.jsonl", b"BZh9 packed"),
        ("other.jsonl", record("r", "a record").as_bytes()),
    ]);
    let incomplete = |report: &common::Report| report.0["incomplete"].to_string();
    let first = home.run(&["corpus"], 1);
    let why = incomplete(&first);
    for word in ["not read (2)", "cut.md.zst", "cut off", "packed.md", "xz -d", "part.jsonl", "bzip2 -d"] {
        assert!(why.contains(word), "no {word} in {why}");
    }
    assert_eq!((first.n("chunks"), ids(&home).len()), (3, 3), "half a text is no text; neighbours go on");
    assert_eq!(incomplete(&home.run(&[], 1)), why, "until it is mended");
    put(&home, "cut.md.zst", &whole);
    put(&home, "packed.md", "unpacked");
    put(&home, "part.jsonl", record("p", "p"));
    home.run(&[], 0);
    assert_eq!(ids(&home), ["a.md", "cut.md.zst", "p", "packed.md", "r", "z.md"]);
    home.verified();
}

#[test]
fn a_folder_without_permission_is_told_and_its_neighbours_go_on() {
    let home = corpus(&[("a.md", b"a"), ("secret/b.md", b"b")]);
    let secret = home.at("corpus/secret");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    let closed = fs::read_dir(&secret).is_err();
    if closed {
        let report = home.run(&["corpus"], 1);
        assert!(report.0["incomplete"].to_string().contains("secret"), "{}", report.0);
        assert_eq!(ids(&home), ["a.md"]);
    } else {
        println!("skipped: permissions do not bind this user");
    }
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o755)).unwrap();
    home.run(&["corpus"], 0);
    assert_eq!(ids(&home), ["a.md", "secret/b.md"]);
}

#[test]
fn a_changed_file_is_embedded_anew_and_its_old_tail_goes() {
    let words = |n: usize| (0..n).map(|i| format!("word{i} ")).collect::<String>();
    let home = corpus(&[("a.md", words(900).as_bytes()), ("b.md", b"b")]);
    let chunks = home.run(&["corpus"], 0).n("chunks");
    assert!(chunks > 2);
    put(&home, "a.md", "short now");
    let report = home.run(&["corpus"], 0);
    assert_eq!(report.numbers(["chunks", "embedded", "skipped"]), [1, 1, 1]);
    assert_eq!(home.texts(), [("a.md#0", "short now"), ("b.md#0", "b")].map(|(a, b)| (a.into(), b.into())));
    home.holds(2);
}

#[test]
fn the_data_folder_is_never_taken_for_input() {
    let home = Home::with_data("forebay-data");
    home.file("notes.md", "notes");
    home.run(&["."], 0);
    let again = home.run(&["."], 0);
    assert_eq!(again.numbers(["documents", "skipped", "unreadable"]), [1, 1, 0], "not its journals either");
    home.forebay(&["run", "forebay-data"]).exits(2).says(&["data folder"]);
}

#[test]
fn a_folder_without_a_text_is_told() {
    for files in [&[][..], &[("a.png", b"x".as_slice()), ("b.html", b"y")][..]] {
        let home = corpus(files);
        fs::create_dir_all(home.at("corpus")).unwrap();
        let report = home.run(&["corpus"], 1);
        let why = report.0["incomplete"].to_string();
        let others = format!("no text file in it, and {} of other kinds", files.len());
        assert!(why.contains(&others) && why.contains("source.include"), "{why}");
    }
}

#[test]
fn many_files_are_one_source() {
    let home = Home::new();
    fs::create_dir(home.at("corpus")).unwrap();
    for n in 0..3_000 {
        fs::write(home.at("corpus").join(format!("{n}.txt")), format!("text {n}")).unwrap();
    }
    home.run(&["corpus"], 0);
    let ledger = rusqlite::Connection::open(home.data("ledger.db")).unwrap();
    let sources: i64 = ledger.query_row("SELECT count(*) FROM sources", [], |row| row.get(0)).unwrap();
    assert_eq!(sources, 1);
    home.holds(3_000);
}
