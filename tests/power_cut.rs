//! The power fails during a run: what was acknowledged is still there, the queue opens or is rebuilt, and the next
//! run does the rest. The cut is ext4's shutdown without a flush of its log, on a file system of its own.
//! `FOREBAY_CUTS=300` is the long form.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use common::{Home, Mount, Running, corpus, may_mount, number_set, poll, record};
use forebay::{
    chunk::{Chunk, ChunkKey, Digest},
    folder::Folder,
    queue,
};
use rusqlite::Connection;
use serde_json::Value;

const CUTS: u64 = 8;

/// `_IOR('X', 125, __u32)` of the kernel's ext4.h, and its flag that leaves the log unflushed.
const EXT4_IOC_SHUTDOWN: libc::Ioctl = 0x8004_587d;
static NOLOGFLUSH: u32 = 2;

/// A disk in a file, with the home's data folder on it.
struct Disk {
    _folder: tempfile::TempDir,
    image: PathBuf,
    at: PathBuf,
}

impl Disk {
    fn new() -> Option<(Self, Mount)> {
        let folder = tempfile::tempdir().unwrap();
        let (image, at) = (folder.path().join("image"), folder.path().join("disk"));
        std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status();
        if !made.is_ok_and(|status| status.success()) {
            println!("skipped: no mkfs.ext4 here");
            return None;
        }
        let disk = Self { _folder: folder, image, at };
        let mount = disk.mount()?;
        Some((disk, mount))
    }

    fn mount(&self) -> Option<Mount> {
        // A short commit interval: more states of the disk between which the cut can fall.
        Mount::new(self.at.clone(), &["-o", "loop,commit=1", &self.image.display().to_string()])
    }
}

/// Cuts the power of the file system that `path` is on. False where the kernel has no such thing.
#[expect(unsafe_code, reason = "an ioctl has no safe form")]
fn cut(path: &Path) -> bool {
    let folder = std::fs::File::open(path).unwrap();
    // SAFETY: the descriptor lives through the call, and the argument is the one number it reads.
    let done = unsafe { libc::ioctl(folder.as_raw_fd(), EXT4_IOC_SHUTDOWN, &raw const NOLOGFLUSH) };
    done == 0
}

/// The keys that the ledger has acknowledged.
fn acknowledged(home: &Home) -> BTreeSet<String> {
    let ledger = Connection::open(home.data("ledger.db")).unwrap();
    let mut query = ledger.prepare("SELECT doc_id FROM chunks").unwrap();
    query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// What the data folder has said is done, and must still know after every cut.
#[derive(Default)]
struct Promised {
    /// Keys in the ledger.
    written: BTreeSet<String>,
    /// Letters by id, with their state.
    letters: BTreeMap<String, String>,
    /// Chunks that `enqueue` has taken up.
    enqueued: BTreeSet<String>,
    /// Operations acknowledged in all.
    operations: usize,
}

impl Promised {
    /// Takes in what the folder says now.
    fn look(&mut self, home: &Home) {
        let written = acknowledged(home);
        self.operations += written.difference(&self.written).count();
        self.written = written;
    }

    /// Letters as the folder knows them now; each must be there in the state it was acknowledged in.
    fn letters(&mut self, home: &Home, round: u64) {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let now: BTreeMap<String, String> =
            home.letters().iter().map(|letter| (text(&letter["id"]), text(&letter["state"]))).collect();
        for (id, state) in &self.letters {
            assert_eq!(now.get(id), Some(state), "round {round}: letter {id}");
        }
        self.operations += now.len() - self.letters.len();
        self.letters = now;
    }

    /// After a cut: all of it is still there.
    fn holds(&mut self, home: &Home, round: u64) {
        let there = acknowledged(home);
        let lost: Vec<_> = self.written.difference(&there).collect();
        assert!(lost.is_empty(), "round {round}: {} acknowledged rows are gone", lost.len());
        self.look(home);
        self.letters(home, round);
        // Pending, written, or in a source that is read again: a chunk is looked at now and then, as it costs a process.
        let status = home.status().expect("the folder opens");
        if status["unread_sources"].as_array().unwrap().is_empty() {
            self.enqueued.retain(|doc| !there.contains(doc));
            let pending = status["queue"]["pending"].as_u64().unwrap();
            assert!(pending >= self.enqueued.len() as u64, "round {round}: of {:?} {status}", self.enqueued);
        }
    }
}

const SETTINGS_OF_A_RUN: [&str; 6] =
    ["--set", "pipeline.batch_chunks=8", "--set", "pipeline.grace_s=1", "--set", "limits.min_free_mb=0"];

/// One round up to the moment of the cut. Gives the process that is to be cut off.
fn work(
    home: &Home,
    input: &str,
    promised: &mut Promised,
    round: u64,
    random: &mut fastrand::Rng,
) -> Option<Running> {
    match round % 4 {
        1 => {
            // Acknowledged by `enqueue`: in the queue, and in the DLQ what cannot be read.
            let docs: Vec<String> = (0..20).map(|n| format!("more-{round}-{n}")).collect();
            let lines: String = docs.iter().map(|doc| record(doc, "enqueued before a cut")).collect();
            let bad = format!("{{\"id\": \"cut-{round}\n{}", record(&format!("blank-{round}"), ""));
            let (arguments, piped) = (["enqueue", "-", "--set", "limits.min_free_mb=0"], random.bool());
            if piped {
                home.fed(&arguments, lines + &bad).wait().exits(1);
            } else {
                let file = home.file(&format!("more-{round}.jsonl"), lines + &bad);
                home.forebay(&[&["enqueue", &*file], &arguments[2..]].concat()).exits(1);
            }
            promised.operations += docs.len();
            promised.enqueued.extend(docs);
            promised.letters(home, round);
            None
        }
        3 => {
            // Acknowledged by `dlq`: some letters are given up.
            let open =
                promised.letters.iter().filter(|(_, state)| *state == "open").map(|(id, _)| id.clone());
            let ids: Vec<String> = open.take(3).collect();
            if !ids.is_empty() {
                let mut arguments = vec!["dlq", "discard", "--reason", "a test"];
                arguments.extend(ids.iter().map(String::as_str));
                home.forebay(&arguments).exits(0);
                promised.operations += ids.len();
                promised.letters.extend(ids.into_iter().map(|id| (id, "discarded".to_owned())));
            }
            None
        }
        _ => {
            let mut run = home.start(&[&["run", "--json", input][..], &SETTINGS_OF_A_RUN].concat());
            let rows = promised.written.len() as u64 + random.u64(20..140);
            poll("some more is written", || (home.ledger_rows() >= rows || run.ended()).then_some(()));
            promised.look(home);
            Some(run)
        }
    }
}

#[test]
fn what_was_acknowledged_before_a_power_cut_is_there_after_it() {
    if !may_mount() {
        return;
    }
    let Some((disk, mut mount)) = Disk::new() else { return };
    let (seed, cuts) = (20_261_130, number_set("FOREBAY_CUTS").unwrap_or(CUTS));
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let home = Home::with_data(disk.at.join("data"));
    let chunks = cuts * 60 + 1_000;
    let input = home.file("in.jsonl", corpus(usize::try_from(chunks).unwrap()));
    let (mut promised, mut rebuilt, began) = (Promised::default(), 0, Instant::now());
    for round in 0..cuts {
        let run = work(&home, &input, &mut promised, round, &mut random);
        if !cut(&disk.at) {
            println!("skipped: this kernel cannot cut the power of ext4");
            return;
        }
        run.map(Running::kill);
        drop(mount);
        mount = disk.mount().expect("the disk mounts again");
        promised.holds(&home, round);
        rebuilt += u32::from(home.moved_aside() > 0);
        if round % 50 == 49 {
            println!("{} cuts, {} operations, {:?}", round + 1, promised.operations, began.elapsed());
        }
    }
    println!(
        "{cuts} cuts, {} operations acknowledged and kept, {rebuilt} rounds with a queue rebuilt",
        promised.operations
    );
    let last = home.forebay(&["run", "--json", &input, "--set", "limits.min_free_mb=0"]);
    let enqueued = (0..cuts).filter(|round| round % 4 == 1).count() as u64 * 20;
    assert!(matches!(last.code, Some(0 | 1)), "{last}");
    home.holds(chunks + enqueued);
    promised.letters(&home, cuts);
    drop(mount);
}

/// Says to the child of the test below which folder to fill, and whether its flushes shall lie.
const FILL: &str = "FOREBAY_TEST_FILL";
const LIE: &str = "FOREBAY_TEST_LIE";

/// The check above can fail: of a store whose flushes lie, as sled's own do, a cut leaves less than was flushed.
#[test]
fn a_flush_that_lies_is_seen() {
    if let Some(dir) = std::env::var_os(FILL) {
        return fill(Path::new(&dir), std::env::var_os(LIE).is_some());
    }
    if !may_mount() {
        return;
    }
    let Some((disk, mount)) = Disk::new() else { return };
    // In processes of their own, to be killed: after a cut sled may never come back from closing its store.
    let start = |name: &str, lie: bool| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_flush_that_lies_is_seen", "--nocapture"]).env(FILL, disk.at.join(name));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if lie {
            command.env(LIE, "1");
        }
        let child = Running::of(command);
        poll("it has flushed", || disk.at.join(name).join("flushed").exists().then_some(()));
        child
    };
    let (honest, liar) = (start("honest", false), start("liar", true));
    if !cut(&disk.at) {
        println!("skipped: this kernel cannot cut the power of ext4");
        return;
    }
    honest.kill();
    liar.kill();
    drop(mount);
    let mount = disk.mount().expect("the disk mounts again");
    let pending = |name: &str| {
        let folder = Folder::open(&disk.at.join(name), &SETTINGS, 1_000).unwrap();
        (folder.queue.depth().pending, folder.recovered.queue_rebuilt.is_some())
    };
    assert_eq!(pending("honest"), (200, false));
    let (chunks, rebuilt) = pending("liar");
    assert!(chunks < 200, "200 chunks survived a flush that was none (rebuilt: {rebuilt})");
    drop(mount);
}

const SETTINGS: queue::Settings = queue::Settings { window_chunks: 1_000, cache_mb: 4 };

/// Flushes 200 chunks, says so, and waits to be killed.
fn fill(dir: &Path, lie: bool) {
    let folder = Folder::open(dir, &SETTINGS, 1_000).unwrap();
    queue::durable::LIE.store(lie, std::sync::atomic::Ordering::Relaxed);
    (0..200).for_each(|i| assert!(!folder.queue.enqueue(chunk(i)).unwrap()));
    folder.queue.flush().unwrap();
    std::fs::write(dir.join("flushed"), "").unwrap();
    // The other end of this pipe lives as long as the test does.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

fn chunk(i: u64) -> Chunk {
    let text = format!("text {i} {}", "x".repeat(500));
    Chunk {
        key: ChunkKey::new(format!("doc-{i}"), 0),
        source_hash: Digest::of(text.as_bytes()),
        text,
        meta: None,
        source_id: 1,
        ordinal: i,
        line: i + 1,
    }
}
