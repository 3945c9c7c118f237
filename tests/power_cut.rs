//! The power fails during a run: what was acknowledged is still there, the queue opens or is rebuilt, and the next
//! run does the rest. The cut is ext4's shutdown without a flush of its log, on a file system of its own.

mod common;

use std::{
    collections::BTreeSet,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use common::{Home, Mount, Running, corpus, may_mount, poll};
use forebay::{
    chunk::{Chunk, ChunkKey, Digest},
    folder::Folder,
    queue,
};
use rusqlite::Connection;

const CHUNKS: usize = 6_000;
const CUTS: u32 = 6;

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

#[test]
fn what_was_acknowledged_before_a_power_cut_is_there_after_it() {
    if !may_mount() {
        return;
    }
    let Some((disk, mut mount)) = Disk::new() else { return };
    let seed = 20_261_130;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let home = Home::with_data(disk.at.join("data"));
    let bad = "{\"id\": \"cut\n{\"id\": \"blank\", \"text\": \"\"}\n";
    let input = home.file("in.jsonl", bad.to_owned() + &corpus(CHUNKS));
    let (mut before, mut letters) = (BTreeSet::new(), Vec::new());
    for round in 0..CUTS {
        let settings = [
            "--set",
            "pipeline.batch_chunks=8",
            "--set",
            "pipeline.grace_s=1",
            "--set",
            "limits.min_free_mb=0",
        ];
        let mut run = home.start(&[&["run", "--json", &*input][..], &settings].concat());
        let rows = before.len() as u64 + random.u64(50..400);
        poll("some more is written", || (home.ledger_rows() >= rows || run.ended()).then_some(()));
        // What has been seen in the ledger was acknowledged. The queue of the first round has two letters by then.
        let seen = acknowledged(&home);
        if round == 0 {
            letters = home.letters();
            assert_eq!(letters.len(), 2);
        }
        if !cut(&disk.at) {
            println!("skipped: this kernel cannot cut the power of ext4");
            return;
        }
        run.kill();
        drop(mount);
        mount = disk.mount().expect("the disk mounts again");
        let after = acknowledged(&home);
        let lost: Vec<_> = seen.difference(&after).collect();
        assert!(
            lost.is_empty(),
            "round {round}: {} of {} acknowledged rows are gone",
            lost.len(),
            seen.len()
        );
        println!("round {round}: {} acknowledged, {} there", seen.len(), after.len());
        before = after;
    }
    let written = before.len();
    let ran = home.forebay(&["run", "--json", "-v", &input, "--set", "limits.min_free_mb=0"]).exits(1);
    let report = ran.report();
    assert_eq!(report.n("embedded"), (CHUNKS - written) as u64, "{ran}");
    assert_eq!(report.n("dead"), 2);
    home.holds(CHUNKS as u64);
    let ids =
        |letters: &[serde_json::Value]| letters.iter().map(|letter| letter["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&home.letters()), ids(&letters), "the letters are the same, and no chunk is suspected");
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
