//! The folder as a whole: what a crash, a loss, a roll-back leave behind.

use super::*;
use crate::{chunk::*, error::*, queue::dead::*, queue::dlq::Filter, queue::*};

const SETTINGS: queue::Settings = queue::Settings { window_chunks: 100, cache_mb: 4 };

fn open(dir: &Path) -> Folder {
    Folder::open(dir, &SETTINGS, 30_000).unwrap()
}

fn chunk(doc: &str) -> Chunk {
    let source_hash = Digest::of(doc.as_bytes());
    let key = ChunkKey::new(doc, 0);
    Chunk { key, text: doc.into(), meta: None, source_hash, source_id: 1, ordinal: 0, line: 1 }
}

fn burial(chunk: &Chunk) -> Burial {
    Burial {
        subject: Subject::Chunk(chunk.key.clone()),
        doc_id: None,
        chunk_id: Some(chunk.id()),
        identity: None,
        stage: Stage::Embedder,
        fault: Fault::new(Class::NonFiniteVector, "why"),
        attempts: 1,
        origin: Origin { source_id: 1, source: "s".into(), line: 1, offset: 0 },
        payload: Payload::Chunk { text: "t".into(), meta: None, source_hash: chunk.source_hash },
    }
}

fn lease(queue: &Queue) -> Vec<(Lease, Chunk)> {
    match queue.lease(10, 1_000_000).unwrap() {
        Leased::Chunks(chunks) => chunks,
        _ => Vec::new(),
    }
}

#[test]
fn a_second_opener_is_told_the_holders_pid() {
    let dir = tempfile::tempdir().unwrap();
    let _held = open(dir.path());
    let error = Folder::open(dir.path(), &SETTINGS, 1).unwrap_err().to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
}

#[test]
fn a_dropped_lease_puts_its_chunk_back_and_a_settled_one_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let folder = open(dir.path());
    folder.queue.enqueue(chunk("a")).unwrap();
    drop(lease(&folder.queue));
    let mut again = lease(&folder.queue);
    let (receipt, text) = again.pop().unwrap();
    assert_eq!(text, chunk("a"));
    folder.queue.settle(vec![Settlement::Written(receipt)]).unwrap();
    assert!(matches!(folder.queue.lease(1, 1).unwrap(), Leased::Empty));
    drop(folder);
    assert_eq!(open(dir.path()).queue.depth().pending, 0);
}

#[test]
fn a_lost_queue_comes_back_from_journal_and_sources() {
    let dir = tempfile::tempdir().unwrap();
    let folder = open(dir.path());
    folder.ledger.register("/in.jsonl", "f", "T").unwrap();
    let source = folder.ledger.register("/in.jsonl", "f", "T").unwrap();
    folder.ledger.source_read(&source, &crate::ledger::SourceState::Done, 1, "T").unwrap();
    folder.queue.enqueue(chunk("bad")).unwrap();
    let (receipt, bad) = lease(&folder.queue).pop().unwrap();
    let letters = folder.queue.bury(vec![(Some(receipt), burial(&bad))]).unwrap();
    drop(folder);
    std::fs::remove_dir_all(dir.path().join("queue")).unwrap();
    let folder = open(dir.path());
    assert_eq!(folder.recovered.queue_rebuilt.as_deref(), Some("it is gone"));
    assert_eq!((folder.recovered.letters, folder.recovered.sources), (1, 1));
    assert_eq!(folder.queue.letters(&Filter::default(), 9).unwrap(), [letters[0].clone().unwrap()]);
    assert_eq!(folder.ledger.unread_sources().unwrap(), ["/in.jsonl"]);
}

#[test]
fn a_store_that_was_rolled_back_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let copy = dir.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(dir.path().join("queue")).unwrap().flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
    }
    drop(open(dir.path()));
    std::fs::remove_dir_all(dir.path().join("queue")).unwrap();
    std::fs::rename(&copy, dir.path().join("queue")).unwrap();
    let why = open(dir.path()).recovered.queue_rebuilt.unwrap();
    assert!(why.contains("rolled back"), "{why}");
}

#[test]
fn a_chunk_that_died_alone_thrice_is_suspected_and_a_power_cut_charges_nobody() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).queue.enqueue(chunk("a")).unwrap();
    for round in 1..=5 {
        let folder = open(dir.path());
        if round == 1 {
            folder.queue.enqueue(chunk("a")).unwrap();
        }
        assert!(folder.take_suspects().is_empty(), "round {round}");
        lease(&folder.queue).into_iter().for_each(|(lease, _)| lease.abandon());
    }
    let folder = open(dir.path());
    let suspects = folder.take_suspects();
    assert_eq!(suspects.len(), 1);
    assert_eq!(suspects[0].1.key.doc_id, "a");
}

#[test]
fn what_the_ledger_holds_is_not_embedded_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = open(dir.path());
    let label = "x".to_owned();
    let identity = Identity { label, digest: Digest::of(b"x") };
    folder.queue.enqueue(chunk("a")).unwrap();
    folder.queue.enqueue(chunk("b")).unwrap();
    let a = chunk("a");
    let row = crate::ledger::Written {
        key: a.key.clone(),
        chunk_id: a.id(),
        source_hash: a.source_hash,
        content_hash: a.content_hash(),
        identity: identity.stored(),
        source_id: 1,
        ordinal: 0,
        run: "r".into(),
        embedded_at: "T".into(),
    };
    folder.ledger.commit(&[row], &[]).unwrap();
    assert_eq!(folder.catch_up(&identity).unwrap(), 1);
    assert_eq!(lease(&folder.queue).len(), 1);
}
