//! What every sink must do, run over every sink. What one cannot do by design is a tag, printed and asserted.

use std::path::Path;

use forebay::{
    chunk::{ChunkKey, Digest, Embedding, chunk_id},
    error::Class,
    identity::{Identity, IdentityParts},
    sink::{self, Confirmed, Query, Row, Settings, Sink, SinkError},
};
use rusqlite::Connection;

const DIM: usize = 8;
const STORE: &str = "store-a";

/// A sink under test in a folder of its own.
struct Subject {
    kind: &'static str,
    /// Whether it keeps what it takes; `null` does not.
    keeps: bool,
    dir: tempfile::TempDir,
}

impl Subject {
    fn all() -> Vec<Self> {
        let of = |kind, keeps| Self { kind, keeps, dir: tempfile::tempdir().unwrap() };
        vec![of("sqlite", true), of("null", false)]
    }

    /// Those that keep rows; the others are reported.
    fn keeping() -> Vec<Self> {
        let (keeping, others): (Vec<_>, Vec<_>) = Self::all().into_iter().partition(|subject| subject.keeps);
        others.iter().for_each(|subject| println!("{}: does not keep rows, not asked", subject.kind));
        assert!(!keeping.is_empty());
        keeping
    }

    fn settings(&self) -> Settings {
        Settings { kind: self.kind.into(), path: String::new(), store_text: true, busy_timeout_ms: 20 }
    }

    fn open(&self) -> Box<dyn Sink> {
        sink::open(&self.settings(), self.dir.path()).unwrap()
    }

    fn ready(&self) -> Box<dyn Sink> {
        let sink = self.open();
        sink.preflight(&identity("a"), DIM, STORE, false).unwrap();
        sink
    }
}

fn identity(name: &str) -> Identity {
    Identity::of(&IdentityParts {
        name: name.into(),
        revision: "0123456789".into(),
        weights: Digest::of(name.as_bytes()),
        tokenizer: Digest::of(b"t"),
        pooling: "cls".into(),
        normalize: true,
        max_length: 512,
        outputs: vec!["dense".into()],
        dim: DIM,
        compute: "f32".into(),
        document_prefix: String::new(),
        text_normalization: "none".into(),
    })
}

/// A row whose vector is decided by `seed`.
fn row(doc: &str, index: u64, text: &str, seed: u64) -> Row {
    let key = ChunkKey::new(doc, index);
    let content_hash = Digest::of(text.as_bytes());
    let raw: Vec<f32> = (0..DIM).map(|i| ((seed * 31 + i as u64 * 7) as f32).sin()).collect();
    let norm = raw.iter().map(|x| x * x).sum::<f32>().sqrt();
    Row {
        chunk_id: chunk_id(&key, &content_hash),
        key,
        source_hash: Digest::of(b"as read"),
        content_hash,
        text: text.into(),
        meta: Some(r#"{"n":1.10}"#.into()),
        embedding: Embedding {
            dense: raw.iter().map(|x| x / norm).collect(),
            n_tokens: 3,
            truncated: seed.is_multiple_of(2),
            ..Embedding::default()
        },
    }
}

fn stored(sink: &dyn Sink, store: Option<&str>) -> Vec<sink::Stored> {
    let mut found = Vec::new();
    sink.scan(store, &mut |row| {
        found.push(row);
        Ok(())
    })
    .unwrap();
    found
}

fn db(dir: &Path) -> Connection {
    Connection::open(dir.join("vectors.db")).unwrap()
}

#[test]
fn an_unknown_kind_is_refused() {
    let subject = &Subject::all()[0];
    let settings = Settings { kind: "quadrant".into(), ..subject.settings() };
    let error = sink::open(&settings, subject.dir.path()).err().unwrap().to_string();
    assert!(error.contains("sqlite") && error.contains("quadrant"), "{error}");
}

#[test]
fn every_sink_takes_good_rows_and_refuses_spoilt_ones_by_index() {
    for subject in Subject::all() {
        let sink = subject.ready();
        assert_eq!(sink.kind(), subject.kind);
        assert_eq!(sink.accept(&[row("a", 0, "t", 1), row("a", 1, "u", 2)]).unwrap(), Confirmed::Now);
        sink.confirm().unwrap();
        sink.probe().unwrap();
        sink.accept(&[]).unwrap();
        let spoils: [fn(&mut Vec<f32>); 4] =
            [|v| v[3] = f32::NAN, |v| v[0] += 0.1, |v| v.truncate(4), |v| v.fill(0.0)];
        for spoil in spoils {
            let mut bad = row("b", 1, "bad", 4);
            spoil(&mut bad.embedding.dense);
            match sink.accept(&[row("b", 0, "good", 3), bad]) {
                Err(SinkError::Row { index: 1, fault }) => assert_eq!(fault.class, Class::NonFiniteVector),
                other => panic!("{}: {other:?}", subject.kind),
            }
        }
        assert!(
            sink.embeddings(&[ChunkKey::new("b", 0)]).unwrap()[0].is_none(),
            "all of a batch or none of it"
        );
    }
}

#[test]
fn writing_the_same_chunk_twice_leaves_one_row() {
    for subject in Subject::keeping() {
        let sink = subject.ready();
        let batch = [row("a", 0, "t", 1), row("a", 1, "u", 2), row("b", 0, "t", 1)];
        sink.accept(&batch).unwrap();
        sink.accept(&batch).unwrap();
        let found = stored(&*sink, None);
        assert_eq!(found.len(), 3);
        for (found, sent) in found.iter().zip(&batch) {
            assert_eq!((&found.key, found.chunk_id), (&sent.key, sent.chunk_id));
            assert_eq!((found.source_hash, found.content_hash), (sent.source_hash, sent.content_hash));
            assert_eq!((found.identity.as_str(), found.store.as_str()), (&*identity("a").stored(), STORE));
            assert!(found.embedded_at.parse::<jiff::Timestamp>().is_ok() && found.embedded_at.ends_with('Z'));
        }
        let keys: Vec<_> = batch.iter().map(|row| row.key.clone()).chain([ChunkKey::new("c", 0)]).collect();
        let embeddings = sink.embeddings(&keys).unwrap();
        for (embedding, sent) in embeddings.iter().zip(&batch) {
            assert_eq!(embedding.as_ref(), Some(&sent.embedding));
        }
        assert_eq!(embeddings[3], None);
    }
}

/// The same row with all outputs: two rows beside the dense vector, as of three tokens.
fn with_outputs(row: Row, sparse: &[(u32, f32)]) -> Row {
    let multi = [row.embedding.dense.clone(), row.embedding.dense.iter().rev().copied().collect()].concat();
    let embedding = Embedding { sparse: Some(sparse.to_vec()), multi: Some(multi), ..row.embedding };
    Row { embedding, ..row }
}

#[test]
fn a01_all_outputs_are_kept_checked_and_overwritten() {
    for subject in Subject::keeping() {
        let sink = subject.ready();
        let all = with_outputs(row("a", 0, "t", 1), &[(5, 0.5), (300_000, 1e-6)]);
        // Nothing but specials: an output that is empty is not one that is absent.
        let empty = with_outputs(row("b", 0, "u", 2), &[]);
        sink.accept(&[all.clone(), empty.clone()]).unwrap();
        let keys = [all.key.clone(), empty.key.clone()];
        let sent = [Some(all.embedding.clone()), Some(empty.embedding)];
        assert_eq!(sink.embeddings(&keys).unwrap(), sent);
        type Spoil = (fn(&mut Embedding), &'static str);
        let spoils: [Spoil; 4] = [
            (|e| e.sparse.as_mut().unwrap()[0].1 = f32::NAN, "sparse: weight 0 is NaN"),
            (|e| e.sparse.as_mut().unwrap().reverse(), "sparse: token ids are not ascending"),
            (|e| e.multi.as_mut().unwrap()[DIM] += 0.5, "multi, row 1: norm"),
            (|e| e.multi.as_mut().unwrap().truncate(DIM), "multi: 8 numbers instead of 2 rows of 8"),
        ];
        for (spoil, said) in spoils {
            let mut bad = all.clone();
            spoil(&mut bad.embedding);
            match sink.accept(&[row("c", 0, "good", 3), bad]) {
                Err(SinkError::Row { index: 1, fault }) => {
                    assert_eq!(fault.class, Class::NonFiniteVector);
                    assert!(fault.to_string().contains(said), "{fault}");
                }
                other => panic!("{}: {other:?}", subject.kind),
            }
        }
        sink.accept(&[row("a", 0, "t", 1)]).unwrap();
        let now = sink.embeddings(&keys[..1]).unwrap().remove(0).unwrap();
        assert_eq!((now.sparse, now.multi), (None, None), "nothing is left of what was there");
    }
}

#[test]
fn the_newest_text_overwrites() {
    for subject in Subject::keeping() {
        let sink = subject.ready();
        sink.accept(&[row("a", 0, "old", 1)]).unwrap();
        let new = Row { meta: None, ..row("a", 0, "new", 5) };
        sink.accept(std::slice::from_ref(&new)).unwrap();
        let found = stored(&*sink, None);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].chunk_id, new.chunk_id);
        let hits = sink.search(&identity("a"), &Query::dense(new.embedding.dense), 5).unwrap();
        assert_eq!((hits[0].text.as_deref(), hits[0].meta.as_deref()), (Some("new"), None));
    }
}

#[test]
fn scan_is_in_byte_order_and_by_store_and_stops_at_the_first_error() {
    for subject in Subject::keeping() {
        let sink = subject.ready();
        let keys = [("é", 0), ("b", 10), ("b", 9), ("B", 0), ("b\0", 0), ("a", 1 << 40), ("", 3)];
        let rows: Vec<_> = keys.iter().map(|(doc, index)| row(doc, *index, "t", 1)).collect();
        sink.accept(&rows).unwrap();
        let mut sorted: Vec<_> = rows.iter().map(|row| row.key.clone()).collect();
        sorted.sort();
        assert_eq!(stored(&*sink, None).into_iter().map(|row| row.key).collect::<Vec<_>>(), sorted);

        let other = subject.open();
        other.preflight(&identity("a"), DIM, "store-b", false).unwrap();
        other.accept(&[row("b", 9, "t", 1), row("z", 0, "t", 1)]).unwrap();
        assert_eq!(stored(&*other, Some("store-b")).len(), 2);
        assert_eq!(stored(&*other, Some(STORE)).len(), keys.len() - 1);
        assert_eq!(stored(&*other, Some("store-c")), []);

        let mut seen = 0;
        let stopped = sink.scan(None, &mut |_| {
            seen += 1;
            Err(SinkError::Unusable("enough".into()))
        });
        assert!(matches!(stopped, Err(SinkError::Unusable(why)) if why == "enough"));
        assert_eq!(seen, 1);
    }
}

#[test]
fn delete_removes_these_keys_and_no_others() {
    for subject in Subject::keeping() {
        let sink = subject.ready();
        sink.accept(&[row("a", 0, "t", 1), row("a", 1, "t", 1), row("b", 0, "t", 1)]).unwrap();
        let gone = [ChunkKey::new("a", 1), ChunkKey::new("absent", 0)];
        sink.delete(&gone).unwrap();
        sink.delete(&gone).unwrap();
        let left: Vec<_> = stored(&*sink, None).into_iter().map(|row| row.key.to_string()).collect();
        assert_eq!(left, ["a#0", "b#0"]);
        // `forget` comes without a preflight.
        subject.open().delete(&[ChunkKey::new("b", 0)]).unwrap();
        assert_eq!(stored(&*sink, None).len(), 1);
    }
}

#[test]
fn search_is_exact_and_best_first() {
    for subject in Subject::keeping() {
        let sink = subject.ready();
        let rows: Vec<_> =
            (0..300).map(|n| row(&format!("d{}", n % 7), n, &format!("text {n}"), n)).collect();
        sink.accept(&rows).unwrap();
        let query = row("q", 0, "q", 1_000).embedding.dense;
        let scaled: Vec<f32> = query.iter().map(|x| x * 3.0).collect();
        let hits = sink.search(&identity("a"), &Query::dense(scaled), 10).unwrap();
        let dot = |v: &[f32]| v.iter().zip(&query).map(|(a, b)| a * b).sum::<f32>();
        let mut expected: Vec<_> = rows.iter().map(|row| (dot(&row.embedding.dense), row)).collect();
        expected.sort_by(|a, b| b.0.total_cmp(&a.0));
        assert_eq!(hits.len(), 10);
        for (hit, (score, row)) in hits.iter().zip(expected) {
            assert!((hit.score - score).abs() < 1e-5);
            assert_eq!((&hit.doc_id, hit.chunk_index), (&row.key.doc_id, row.key.chunk_index));
            assert_eq!(hit.text.as_ref(), Some(&row.text));
        }
        let query = Query::dense(query);
        assert_eq!(sink.search(&identity("a"), &query, 1_000).unwrap().len(), 300);
        assert_eq!(sink.search(&identity("a"), &query, 0).unwrap(), []);
        assert_eq!(sink.search(&identity("b"), &query, 10).unwrap(), [], "another space is never compared");
    }
}

#[test]
fn a14_another_identity_is_refused_unless_everything_is_embedded_again() {
    for subject in Subject::keeping() {
        let sink = subject.ready();
        sink.accept(&[row("a", 0, "t", 1), row("b", 0, "u", 2)]).unwrap();
        let again = subject.open();
        again.preflight(&identity("a"), DIM, STORE, false).unwrap();
        let other = subject.open();
        for refused in [
            other.preflight(&identity("b"), DIM, STORE, false),
            other.preflight(&identity("a"), DIM + 1, STORE, false),
        ] {
            let why = refused.unwrap_err();
            assert_eq!(why.class(), Class::ModelMismatch);
            assert!(why.to_string().contains("--reembed"), "{why}");
        }
        let why = other.preflight(&identity("b"), DIM, STORE, false).unwrap_err().to_string();
        assert!(why.contains(&identity("a").label) && why.contains(&identity("b").label), "{why}");

        other.preflight(&identity("b"), DIM, STORE, true).unwrap();
        other.accept(&[row("a", 0, "t", 3)]).unwrap();
        let query = Query::dense(row("q", 0, "q", 9).embedding.dense);
        assert_eq!(other.search(&identity("b"), &query, 9).unwrap().len(), 1);
        assert_eq!(other.search(&identity("a"), &query, 9).unwrap().len(), 1, "not yet overwritten");
        assert!(subject.open().preflight(&identity("a"), DIM, STORE, false).is_err());
    }
}

#[test]
fn a_sink_without_preflight_takes_nothing() {
    let subject = &Subject::keeping()[0];
    subject.ready();
    assert!(matches!(subject.open().accept(&[row("a", 0, "t", 1)]), Err(SinkError::Unusable(_))));
    let empty = Subject::keeping().remove(0);
    let why = empty.open().search(&identity("a"), &Query::dense(vec![1.0; DIM]), 1).unwrap_err().to_string();
    assert!(why.contains("forebay run"), "{why}");
    empty.open().delete(&[ChunkKey::new("a", 0)]).unwrap();
    assert!(!empty.dir.path().join("vectors.db").exists(), "reading creates nothing");
}

#[test]
fn sqlite_e_a_lock_held_elsewhere_is_an_outage_and_nothing_is_written() {
    let subject = &Subject::all()[0];
    let sink = subject.ready();
    sink.accept(&[row("a", 0, "t", 1)]).unwrap();
    let other = db(subject.dir.path());
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for result in
        [sink.accept(&[row("a", 1, "u", 2)]).map(|_| ()), sink.probe(), sink.delete(&[ChunkKey::new("a", 0)])]
    {
        match result {
            Err(SinkError::Unavailable(fault)) => {
                assert_eq!(fault.class, Class::SinkUnavailable);
                assert!(fault.native_code.is_some_and(|code| code.starts_with("SQLITE_5")), "busy");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(stored(&*sink, None).len(), 1, "readers do not wait for the lock");
    assert_eq!(sink.search(&identity("a"), &Query::dense(vec![1.0; DIM]), 3).unwrap().len(), 1);
    other.execute_batch("ROLLBACK").unwrap();
    sink.probe().unwrap();
    sink.accept(&[row("a", 1, "u", 2)]).unwrap();
    assert_eq!(stored(&*sink, None).len(), 2);
}

#[test]
fn sqlite_a_row_the_store_refuses_is_named_and_its_neighbours_are_not_written() {
    let subject = &Subject::all()[0];
    let sink = subject.ready();
    db(subject.dir.path())
        .execute_batch(
            "CREATE TRIGGER no BEFORE INSERT ON vectors WHEN new.doc_id = 'poison'
             BEGIN SELECT RAISE(ABORT, 'secret words'); END",
        )
        .unwrap();
    let batch = [row("a", 0, "t", 1), row("poison", 0, "t", 1), row("b", 0, "t", 1)];
    match sink.accept(&batch) {
        Err(SinkError::Row { index: 1, fault }) => {
            assert_eq!(fault.class, Class::SinkRejectedRow);
            assert!(!fault.message.contains("secret"), "{fault}");
            assert!(fault.native_code.is_some());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(stored(&*sink, None), []);
    sink.accept(&[batch[0].clone(), batch[2].clone()]).unwrap();
    let far = Row { key: ChunkKey::new("a", u64::MAX), ..batch[0].clone() };
    assert!(matches!(sink.accept(&[far]), Err(SinkError::Row { index: 0, .. })));
}

#[test]
fn sqlite_probe_leaves_no_trace() {
    let subject = &Subject::all()[0];
    let sink = subject.ready();
    let dump = || -> Vec<(String, String)> {
        let conn = db(subject.dir.path());
        let mut query = conn.prepare("SELECT key, value FROM forebay_meta ORDER BY key").unwrap();
        query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    let before = dump();
    sink.probe().unwrap();
    assert_eq!(dump(), before);
    let keys: Vec<_> = before.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["created_at", "dim", "format", "identity", "identity_digest"]);
    let mut files: Vec<_> = subject
        .dir
        .path()
        .read_dir()
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert!(files.iter().all(|name| name.starts_with("vectors.db")), "{files:?}");
}

#[test]
fn sqlite_the_file_is_as_promised() {
    use std::os::unix::fs::PermissionsExt as _;
    let subject = &Subject::all()[0];
    let sink = subject.ready();
    sink.accept(&[row("a", 7, "t", 2)]).unwrap();
    for name in ["vectors.db", "vectors.db-wal", "vectors.db-shm"] {
        let mode = subject.dir.path().join(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let conn = db(subject.dir.path());
    assert_eq!(conn.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    assert_eq!(conn.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0)).unwrap(), "wal");
    let (kinds, tokens, truncated, dim, text, nulls, dense): (String, i64, i64, i64, String, bool, Vec<u8>) =
        conn.query_row(
            "SELECT typeof(source_hash) || typeof(content_hash) || typeof(chunk_id) || typeof(embedded_at),
                    n_tokens, truncated, dim, text, sparse IS NULL AND multi IS NULL, dense FROM vectors",
            [],
            |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?, r.get(5)?, r.get(6)?)),
        )
        .unwrap();
    assert_eq!((kinds.as_str(), tokens, truncated), ("blobblobtexttext", 3, 1));
    assert_eq!((dim, text.as_str(), nulls), (DIM as i64, "t", true));
    let first = row("a", 7, "t", 2).embedding.dense[0];
    assert_eq!(dense[..4], first.to_le_bytes());
    assert_eq!(dense.len(), 4 * DIM);
    let all = with_outputs(row("a", 7, "t", 2), &[(5, 1.0), (9, 0.5)]);
    sink.accept(std::slice::from_ref(&all)).unwrap();
    let (sparse, multi): (Vec<u8>, Vec<u8>) =
        conn.query_row("SELECT sparse, multi FROM vectors", [], |r| Ok((r.get(0)?, r.get(1)?))).unwrap();
    assert_eq!(sparse, [5, 0, 0, 0, 0, 0, 0x80, 0x3f, 9, 0, 0, 0, 0, 0, 0, 0x3f]);
    let numbers: Vec<u8> = all.embedding.multi.unwrap().iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(multi, numbers);
}

#[test]
fn sqlite_store_text_false_leaves_the_text_out() {
    let subject = &Subject::all()[0];
    let settings = Settings { store_text: false, ..subject.settings() };
    let sink = sink::open(&settings, subject.dir.path()).unwrap();
    sink.preflight(&identity("a"), DIM, STORE, false).unwrap();
    sink.accept(&[row("a", 0, "hush", 1)]).unwrap();
    assert_eq!(sink.search(&identity("a"), &Query::dense(vec![1.0; DIM]), 1).unwrap()[0].text, None);
    let bytes = std::fs::read(subject.dir.path().join("vectors.db-wal")).unwrap();
    assert!(!bytes.windows(4).any(|window| window == b"hush"));
}

#[test]
fn sqlite_files_that_are_not_ours_are_refused_and_left_alone() {
    type Case = (&'static str, fn(&Path));
    let cases: [Case; 5] = [
        ("not ours", |dir| db(dir).execute_batch("CREATE TABLE vectors(a)").unwrap()),
        ("another program", |dir| db(dir).execute_batch("PRAGMA user_version = 7").unwrap()),
        ("newer forebay", |dir| {
            db(dir)
                .execute_batch(
                    "CREATE TABLE vectors(a); CREATE TABLE forebay_meta(key TEXT PRIMARY KEY, value TEXT);
                     PRAGMA user_version = 2",
                )
                .unwrap();
        }),
        ("not those of format", |dir| {
            db(dir)
                .execute_batch(
                    "CREATE TABLE vectors(a); CREATE TABLE forebay_meta(key TEXT PRIMARY KEY, value TEXT);
                     PRAGMA user_version = 1",
                )
                .unwrap();
        }),
        ("not an SQLite database", |dir| std::fs::write(dir.join("vectors.db"), "x".repeat(4_096)).unwrap()),
    ];
    for (words, make) in cases {
        let subject = &Subject::all()[0];
        make(subject.dir.path());
        let before = std::fs::read(subject.dir.path().join("vectors.db")).unwrap();
        for reembed in [false, true] {
            let why = subject.open().preflight(&identity("a"), DIM, STORE, reembed).unwrap_err();
            assert!(matches!(why, SinkError::Unusable(_)), "{why:?}");
            assert!(why.to_string().contains(words) && why.to_string().contains("sink.path"), "{why}");
        }
        let after = std::fs::read(subject.dir.path().join("vectors.db")).unwrap();
        assert!(before == after, "{words}: not a byte of it may change");
    }
}

#[test]
fn sqlite_a_missing_folder_is_named() {
    let subject = &Subject::all()[0];
    let path = subject.dir.path().join("no/such/vectors.db").display().to_string();
    let settings = Settings { path, ..subject.settings() };
    let sink = sink::open(&settings, subject.dir.path()).unwrap();
    let why = sink.preflight(&identity("a"), DIM, STORE, false).unwrap_err().to_string();
    assert!(why.contains("no/such") && why.contains("create it"), "{why}");
}

#[test]
fn sqlite_what_was_confirmed_survives_a_crash() {
    let subject = &Subject::all()[0];
    let sink = subject.ready();
    sink.accept(&(0..50).map(|n| row("a", n, "t", n)).collect::<Vec<_>>()).unwrap();
    // A crash leaves the file and its log as they are at this moment; nothing is closed or checkpointed.
    let crashed = Subject { dir: tempfile::tempdir().unwrap(), ..Subject::all().remove(0) };
    for name in ["vectors.db", "vectors.db-wal"] {
        std::fs::copy(subject.dir.path().join(name), crashed.dir.path().join(name)).unwrap();
    }
    assert!(crashed.dir.path().join("vectors.db-wal").metadata().unwrap().len() > 0);
    let again = crashed.ready();
    assert_eq!(stored(&*again, None).len(), 50);
    again.accept(&[row("a", 50, "t", 50)]).unwrap();
    assert_eq!(stored(&*again, None).len(), 51);
}

#[test]
fn sqlite_a_file_moved_away_under_the_run_is_noticed() {
    let subject = &Subject::all()[0];
    let sink = subject.ready();
    sink.accept(&[row("a", 0, "t", 1)]).unwrap();
    let path = subject.dir.path().join("vectors.db");
    std::fs::rename(&path, subject.dir.path().join("elsewhere.db")).unwrap();
    let why = sink.accept(&[row("a", 1, "t", 1)]).unwrap_err();
    assert!(why.to_string().contains("moved"), "{why}");
}

#[test]
fn sqlite_a_damaged_file_is_named_with_what_to_do() {
    let subject = &Subject::all()[0];
    {
        let sink = subject.ready();
        sink.accept(&(0..500).map(|n| row("a", n, &"t".repeat(500), n)).collect::<Vec<_>>()).unwrap();
    }
    let path = subject.dir.path().join("vectors.db");
    let mut bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() > 40_000, "the log was folded in when the sink was closed");
    let end = bytes.len() - 4_096;
    bytes[8_192..end].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let mut outcome = Ok(());
    for _ in 0..2 {
        outcome = subject.open().scan(None, &mut |_| Ok(()));
    }
    let why = outcome.unwrap_err();
    assert!(matches!(&why, SinkError::Unusable(_)), "{why:?}");
    assert!(why.to_string().contains("vectors.db") && why.to_string().contains("damaged"), "{why}");
}

#[test]
fn sqlite_writers_in_two_threads_do_not_lose_rows() {
    let subject = &Subject::all()[0];
    let settings = Settings { busy_timeout_ms: 5_000, ..subject.settings() };
    let open = || {
        let sink = sink::open(&settings, subject.dir.path()).unwrap();
        sink.preflight(&identity("a"), DIM, STORE, false).unwrap();
        sink
    };
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            scope.spawn(move || {
                let sink = open();
                for n in 0..50 {
                    sink.accept(&[row(name, n, "t", n)]).unwrap();
                }
            });
        }
    });
    assert_eq!(stored(&*open(), None).len(), 100);
}
