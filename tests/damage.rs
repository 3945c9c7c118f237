//! Any one file of a data folder is damaged in any one way: the next start is refused and names the file and what to
//! type, or the run is right. Never a silently empty queue, never a panic, never a hang.
//!
//! `FOREBAY_TRIALS=200` is the long form, `FOREBAY_SEED=n` one trial alone.

mod common;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use common::{Home, Ran, corpus, number_set, record};
use rusqlite::Connection;

const TRIALS: u64 = 25;

/// What can happen to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Flip,
    Zero,
    Half,
    Empty,
    Garbage,
    Removed,
    Folder,
    Foreign,
    ReadOnly,
}

const FAULTS: [Fault; 9] = [
    Fault::Flip,
    Fault::Zero,
    Fault::Half,
    Fault::Empty,
    Fault::Garbage,
    Fault::Removed,
    Fault::Folder,
    Fault::Foreign,
    Fault::ReadOnly,
];

impl Fault {
    /// Does it to `path`; `other` is the same file of another data folder.
    fn strike(self, path: &Path, other: &Path, random: &mut fastrand::Rng) {
        let rewrite = |change: &mut dyn FnMut(&mut Vec<u8>)| {
            let mut bytes = std::fs::read(path).unwrap();
            change(&mut bytes);
            std::fs::write(path, bytes).unwrap();
        };
        match self {
            Self::Flip => rewrite(&mut |bytes| {
                if !bytes.is_empty() {
                    let at = random.usize(..bytes.len());
                    bytes[at] ^= 1 << random.u32(..8);
                }
            }),
            Self::Zero => rewrite(&mut |bytes| {
                let at = random.usize(..=bytes.len() / 4096) * 4096;
                bytes.iter_mut().skip(at).take(4096).for_each(|byte| *byte = 0);
            }),
            Self::Half => rewrite(&mut |bytes| bytes.truncate(bytes.len() / 2)),
            Self::Empty => rewrite(&mut Vec::clear),
            Self::Garbage => rewrite(&mut |bytes| bytes.extend((0..999).map(|_| random.u8(..)))),
            Self::Removed => std::fs::remove_file(path).unwrap(),
            Self::Folder => {
                std::fs::remove_file(path).unwrap();
                std::fs::create_dir(path).unwrap();
            }
            Self::Foreign => _ = std::fs::copy(other, path).unwrap(),
            Self::ReadOnly => {
                let mut mode = std::fs::metadata(path).unwrap().permissions();
                mode.set_readonly(true);
                std::fs::set_permissions(path, mode).unwrap();
            }
        }
    }
}

/// Chunk id and vector by key.
type Sink = BTreeMap<String, (String, Vec<u8>)>;
/// Chunk id by key.
type Ledger = BTreeMap<String, String>;

/// What must be there when all is done: the rows of the sink, those of the ledger, the open letters.
#[derive(Debug, PartialEq, Eq)]
struct Truth {
    sink: Sink,
    ledger: Ledger,
    letters: Vec<String>,
}

impl Truth {
    /// `None` where a database cannot be read.
    fn of(home: &Home) -> Option<Self> {
        let (sink, ledger) = Self::rows(home).ok()?;
        let essence = |letter: &serde_json::Value| {
            format!("{} {} {}", letter["state"], letter["class"], letter["origin"]["line"])
        };
        let mut letters: Vec<String> = home.letters().iter().map(essence).collect();
        letters.sort();
        Some(Self { sink, ledger, letters })
    }

    fn rows(home: &Home) -> rusqlite::Result<(Sink, Ledger)> {
        let open = |name: &str| Connection::open(home.data(name));
        let (sink, ledger) = (open("vectors.db")?, open("ledger.db")?);
        let mut query = sink.prepare("SELECT doc_id, chunk_index, chunk_id, dense FROM vectors")?;
        let rows = query.query_map([], |row| {
            let key = format!("{}#{}", row.get::<_, String>(0)?, row.get::<_, i64>(1)?);
            Ok((key, (row.get(2)?, row.get(3)?)))
        });
        let sink = rows?.collect::<rusqlite::Result<_>>()?;
        let mut query = ledger.prepare("SELECT doc_id, chunk_index, chunk_id FROM chunks")?;
        let rows = query.query_map([], |row| {
            Ok((format!("{}#{}", row.get::<_, String>(0)?, row.get::<_, i64>(1)?), row.get(2)?))
        });
        let ledger = rows?.collect::<rusqlite::Result<_>>()?;
        Ok((sink, ledger))
    }
}

/// Lines of which two can never be embedded.
fn lines(name: &str, n: usize) -> String {
    let bad = format!("{}{{\"id\": \"cut\n", record(&format!("{name}-blank"), " "));
    (0..n).map(|i| record(&format!("{name}-{i}"), &format!("{name} says {i}"))).collect::<String>() + &bad
}

/// A data folder with all kinds of files in it, left by a run that was killed (`killed`) or came to its end.
fn base(name: &str, killed: bool) -> Home {
    let home = Home::new();
    let input = home.file("in.jsonl", lines(name, 150));
    home.run(&[&input], 1);
    home.fed(&["enqueue", "-"], lines("piped", 60)).wait().exits(1);
    std::fs::write(home.data("budgets.json"), "{\"cpu instant@1/dense-64/f32/8192\":300}").unwrap();
    if killed {
        let more = home.file("more.jsonl", corpus(2_000));
        let mut run = home.start(&["run", &more, "--set", "pipeline.batch_chunks=2"]);
        run.has_written(&home, 180);
        run.kill();
    } else {
        home.run(&[], 0);
    }
    home
}

/// A home whose data folder is a copy of that of `base`; the inputs stay where they are.
fn copy_of(base: &Home) -> Home {
    let home = Home::new();
    let copied = Command::new("cp").arg("-a").arg(base.data("")).arg(home.data("")).status().unwrap();
    assert!(copied.success());
    home
}

/// Files of a data folder, by their paths in it.
fn files(home: &Home) -> Vec<PathBuf> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => walk(&entry.path(), found),
                kind if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    let (root, mut found) = (home.data(""), Vec::new());
    walk(&root, &mut found);
    let mut found: Vec<PathBuf> =
        found.iter().map(|path| path.strip_prefix(&root).unwrap().to_owned()).collect();
    found.sort();
    found
}

/// A refusal names the file and what to do.
fn is_a_refusal(ran: &Ran, file: &Path, what: &str) {
    assert!(matches!(ran.code, Some(2 | 3)), "{what}: {ran}");
    let name = match file.starts_with("queue") {
        true => "queue".into(),
        false => file.file_name().unwrap().to_string_lossy(),
    };
    // A write-ahead log belongs to its database.
    let name = name.trim_end_matches("-wal").trim_end_matches("-shm");
    // `check` says it in its list.
    let told = ran.stderr.clone() + &ran.stdout;
    assert!(told.contains(name), "{what}: {name} is not named: {ran}");
    let todo = ["forebay rebuild", "run again", "move it aside", "`forebay run`"];
    assert!(todo.iter().any(|word| told.contains(word)), "{what}: nothing to do is named: {ran}");
}

/// Does what a refusal says: the file (and what belongs to it) is moved aside, what is lost is made again.
fn mend(home: &Home, file: &Path, what: &str) {
    let name = file.to_string_lossy();
    let stem = name.trim_end_matches("-wal").trim_end_matches("-shm");
    for name in [stem.to_owned(), format!("{stem}-wal"), format!("{stem}-shm")] {
        if home.data(&name).exists() {
            std::fs::rename(home.data(&name), home.at(&format!("aside{}", name.replace('/', "-")))).unwrap();
        }
    }
    let ran = home.forebay(&["rebuild"]);
    assert_eq!(ran.code, Some(0), "{what}: {ran}");
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ended {
    Unharmed,
    Rebuilt,
    Refused,
    /// `verify` found it, `rebuild` and a run mended it.
    Verified,
    /// The bytes of a row of an SQLite file changed in themselves, which no check of SQLite's can see.
    Unseen,
}

/// One trial.
struct Trial<'a> {
    home: Home,
    truth: &'a Truth,
    /// `run`, with the inputs named again: a ledger that was lost knows of none.
    again: Vec<String>,
    file: PathBuf,
    fault: Fault,
    what: String,
}

fn trial(seed: u64, bases: &[(Home, Truth); 2], foreign: &Home) -> Ended {
    let mut random = fastrand::Rng::with_seed(seed);
    let (base, truth) = &bases[random.usize(..2)];
    let home = copy_of(base);
    let mut files = files(&home);
    let file = files.swap_remove(random.usize(..files.len()));
    let other = foreign.data(&file.display().to_string());
    let fault = match FAULTS[random.usize(..FAULTS.len())] {
        Fault::Foreign if !other.exists() => Fault::Garbage,
        fault => fault,
    };
    let verb = [&["status"][..], &["check"], &["dlq", "list"], &["run"]][random.usize(..4)];
    let what = format!("FOREBAY_SEED={seed}: {fault:?} of {}, then {verb:?}", file.display());
    fault.strike(&home.data(&file.display().to_string()), &other, &mut random);
    let inputs =
        ["in.jsonl", "more.jsonl"].map(|name| base.at(name)).into_iter().filter(|path| path.exists());
    let inputs = inputs.map(|path| path.display().to_string());
    let again = ["run", "--json"].map(str::to_owned).into_iter().chain(inputs).collect();
    Trial { home, truth, again, file, fault, what }.goes(verb)
}

impl Trial<'_> {
    fn goes(&self, verb: &[&str]) -> Ended {
        let Self { home, file, what, .. } = self;
        let first = home.forebay(verb);
        if !matches!(first.code, Some(0 | 1)) {
            is_a_refusal(&first, file, what);
        }
        let mut ended = Ended::Unharmed;
        for _ in 0..4 {
            let ran = home.forebay(&self.again);
            match ran.code {
                Some(0 | 1) => {
                    if ended == Ended::Unharmed && home.moved_aside() > 0 {
                        ended = Ended::Rebuilt;
                    }
                    return self.judge(&ran, ended);
                }
                // It broke while it ran: the next start makes it good.
                Some(3) => is_a_refusal(&ran, file, what),
                _ => {
                    is_a_refusal(&ran, file, what);
                    mend(home, file, what);
                    ended = Ended::Refused;
                }
            }
        }
        panic!("{what}: no run came to an end");
    }

    /// Whether what is there is right; what is not must be said by the run or by `verify`.
    fn judge(&self, ran: &Ran, ended: Ended) -> Ended {
        let Self { home, truth, file, what, .. } = self;
        let verified = home.forebay(&["verify", "--json"]);
        let found = Truth::of(home);
        if verified.code == Some(0) && found.as_ref() == Some(truth) {
            return ended;
        }
        if file.starts_with("spool") {
            // What only lay there may be lost, and that is said.
            let told = ran.report().0["incomplete"].to_string();
            assert!(told.contains("stdin:"), "{what}: a lost input is not told: {ran}");
            return Ended::Refused;
        }
        if verified.code == Some(2) {
            is_a_refusal(&verified, file, what);
            mend(home, file, what);
        } else if verified.code == Some(1) {
            home.forebay(&["rebuild"]).exits(0);
        }
        if verified.code != Some(0) {
            home.forebay(&self.again);
            let sound = home.forebay(&["verify", "--json"]);
            let found = Truth::of(home);
            assert!(
                sound.code == Some(0) && found.as_ref() == Some(truth),
                "{what}: not mended: {verified}\n{sound}"
            );
            return Ended::Verified;
        }
        let found = found.unwrap_or_else(|| panic!("{what}: unreadable and called sound: {verified}"));
        let same_keys = found.sink.keys().eq(truth.sink.keys()) && found.letters == truth.letters;
        let in_a_row =
            file.to_string_lossy().contains(".db") && matches!(self.fault, Fault::Flip | Fault::Zero);
        assert!(in_a_row && same_keys, "{what}: silently wrong: {ran}\n{verified}");
        Ended::Unseen
    }
}

#[test]
fn every_damage_ends_in_a_refusal_that_says_what_to_do_or_in_a_right_run() {
    let bases = [true, false].map(|killed| {
        let base = base("basin", killed);
        let done = copy_of(&base);
        done.forebay(&["run"]);
        done.verified();
        let truth = Truth::of(&done).unwrap();
        assert_eq!(truth.letters.len(), 4);
        (base, truth)
    });
    let foreign = base("other", true);
    let (from, to) = match number_set("FOREBAY_SEED") {
        Some(seed) => (seed, seed + 1),
        None => (0, number_set("FOREBAY_TRIALS").unwrap_or(TRIALS)),
    };
    let (mut ends, mut failed) = (BTreeMap::new(), Vec::new());
    for seed in from..to {
        match std::panic::catch_unwind(|| trial(seed, &bases, &foreign)) {
            Ok(ended) => *ends.entry(ended).or_insert(0) += 1,
            Err(_) => failed.push(seed),
        }
    }
    println!("{} trials: {ends:?}", to - from);
    assert!(failed.is_empty(), "FOREBAY_SEED= one of {failed:?}");
}
