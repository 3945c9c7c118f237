//! What was committed is held; pages; formats.

use super::*;

pub(super) fn written(doc: &str, index: u64, text: &str) -> Written {
    let (key, hash) = (ChunkKey::new(doc, index), Digest::of(text.as_bytes()));
    Written {
        chunk_id: crate::chunk::chunk_id(&key, &hash),
        key,
        source_hash: hash,
        content_hash: hash,
        identity: "i".into(),
        source_id: 3,
        ordinal: 9,
        run: "r".into(),
        embedded_at: "2026-11-30T00:00:00Z".into(),
    }
}

#[test]
fn what_was_committed_is_held_and_the_newest_wins() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    let ledger = Ledger::open(&path).unwrap();
    let letter = Uuid::now_v7();
    ledger.commit(&[written("d", 0, "old")], &[]).unwrap();
    ledger.commit(&[written("d", 0, "new"), written("d", 1, "x")], &[(letter, "as_is".into())]).unwrap();
    drop(ledger);
    let ledger = Ledger::open(&path).unwrap();
    assert_eq!(ledger.held(&ChunkKey::new("d", 0)).unwrap(), Some(written("d", 0, "new")));
    assert_eq!(ledger.held(&ChunkKey::new("d", 2)).unwrap(), None);
    assert_eq!(ledger.resolved().unwrap(), [(letter, "as_is".to_owned())]);
    ledger.resolved_known(&[letter]).unwrap();
    assert_eq!(ledger.resolved().unwrap(), []);
    assert_eq!(ledger.tail("d", 1).unwrap(), [1]);
    ledger.remove(&[ChunkKey::new("d", 1)]).unwrap();
    assert_eq!(ledger.count().unwrap(), 1);
}

#[test]
fn pages_visit_every_key_once_in_byte_order() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&dir.path().join("ledger.db")).unwrap();
    let keys = [("b", 1), ("a", 10), ("a", 2), ("ä", 0), ("B", 0)];
    let rows: Vec<_> = keys.iter().map(|(doc, index)| written(doc, *index, "t")).collect();
    ledger.commit(&rows, &[]).unwrap();
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = ledger.page(after.as_ref(), 2).unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.0.clone());
        seen.extend(page.into_iter().map(|(key, ..)| key));
    }
    let mut expected: Vec<_> = rows.into_iter().map(|row| row.key).collect();
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    drop(Ledger::open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let error = Ledger::open(&path).unwrap_err().to_string();
    assert!(error.contains("ledger.db") && error.contains("99"), "{error}");
}
