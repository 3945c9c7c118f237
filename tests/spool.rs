//! Standard input: on disk before it is acknowledged, kept until all of it is done, and gone then.

mod common;

use std::{path::PathBuf, time::Duration};

use common::{Home, Mount, corpus, may_mount, poll, record};

/// What lies in the spool.
fn spool(home: &Home) -> Vec<PathBuf> {
    let found = std::fs::read_dir(home.data("spool")).into_iter().flatten();
    found.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_run_of_standard_input_is_as_that_of_a_file_and_leaves_no_copy() {
    let home = Home::new();
    let report = home.fed(&["run", "--json", "-"], corpus(50)).wait().exits(0).report();
    assert_eq!(report.numbers(["documents", "chunks"]), [50, 50]);
    home.holds(50);
    assert!(spool(&home).is_empty(), "all of it is done");
    // A dropped input is not missed, not even when the queue is lost.
    std::fs::remove_dir_all(home.data("queue")).unwrap();
    assert_eq!(home.run(&[], 0).n("embedded"), 0);
    // The same again costs nothing; files beside it are read in their turn.
    let file = home.file("more.jsonl", record("more", "one more"));
    let report = home.fed(&["run", "--json", "-", &file], corpus(50)).wait().exits(0).report();
    assert_eq!(report.numbers(["embedded", "chunks", "skipped"]), [1, 1, 50]);
    home.forebay(&["run", "--reembed", "--set", "model.max_length=99"]).exits(0).says(&["no longer kept"]);
}

#[test]
fn what_is_pending_of_an_input_keeps_it() {
    let home = Home::new();
    home.fed(&["enqueue", "-"], corpus(40)).wait().exits(0);
    assert_eq!(spool(&home).len(), 1);
    assert_eq!(
        home.status().unwrap()["unread_sources"].as_array().unwrap().len(),
        0,
        "it was read to its end"
    );
    // The acknowledged input outlives the queue that held its chunks.
    std::fs::remove_dir_all(home.data("queue")).unwrap();
    let report = home.run(&[], 0);
    assert_eq!(report.numbers(["documents", "chunks"]), [40, 40]);
    assert!(spool(&home).is_empty());
    home.holds(40);
}

#[test]
fn a_record_that_cannot_be_read_keeps_its_input_until_somebody_has_decided() {
    let home = Home::new();
    let input = corpus(5) + "{\"name\": \"no id\", \"text\": \"some words\"}\n";
    home.fed(&["run", "-"], &input).wait().exits(1);
    let kept = spool(&home);
    assert_eq!(kept.len(), 1, "a document is split from its file");
    let letter = &home.letters()[0];
    assert!(letter["origin"]["source"].as_str().unwrap().starts_with("stdin:"), "{letter}");
    // Settings that make it readable, and the same file again: it has one name, and its letter closes.
    let path = kept[0].display().to_string();
    let mended = home.run(&[&path, "--set", "source.id_fields=id,name"], 0);
    assert_eq!(mended.numbers(["chunks", "dead"]), [1, 0], "{}", mended.0);
    assert_eq!(home.letters()[0]["state"], "resolved");
    assert!(spool(&home).is_empty());
    home.holds(6);
}

#[test]
fn a_ledger_made_anew_finds_the_inputs_that_were_acknowledged() {
    let home = Home::new();
    let file = home.file("in.jsonl", corpus(3));
    home.run(&[&file], 0);
    home.fed(&["enqueue", "-"], record("acknowledged", "some words")).wait().exits(0);
    for lost in ["queue", "ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        let _ = std::fs::remove_file(home.data(lost));
        let _ = std::fs::remove_dir_all(home.data(lost));
    }
    home.forebay(&["rebuild"]).exits(0);
    assert_eq!(home.run(&[], 0).n("chunks"), 1);
    home.holds(4);
}

#[test]
fn a_moved_data_folder_still_knows_its_inputs() {
    let home = Home::new();
    home.fed(&["enqueue", "-", "--set", "queue.window_chunks=5"], corpus(20)).wait().exits(0);
    std::fs::rename(home.data(""), home.at("moved")).unwrap();
    let report = home.forebay(&["run", "--json", "--data-dir", "moved"]).exits(0).report();
    assert_eq!(report.numbers(["chunks", "dead"]), [20, 0]);
}

#[test]
fn an_input_that_can_be_nothing_is_refused_and_not_kept() {
    let home = Home::new();
    for (input, word) in [(&b""[..], "standard input is empty"), (b"\xff\xfea\0b\0", "UTF-16")] {
        for verb in ["run", "enqueue"] {
            let ran = home.fed(&[verb, "-"], input).wait().exits(2).says(&[word]);
            assert!(ran.stdout.is_empty() && spool(&home).is_empty(), "{ran}");
        }
    }
    // One that was not complete is told once: nobody can add to it.
    let cut = std::fs::read(common::case("b08_truncated.jsonl.gz")).unwrap();
    home.fed(&["run", "-"], cut).wait().exits(1).says(&["incomplete input: stdin:"]);
    home.run(&[], 0);
}

#[test]
fn a_full_disk_refuses_an_input_and_leaves_nothing() {
    if !may_mount() {
        return;
    }
    let folder =
        std::env::temp_dir().join(format!("forebay-spool-{}-{}", std::process::id(), fastrand::u32(..)));
    let Some(mount) = Mount::new(folder, &["-t", "tmpfs", "-o", "size=24m", "none"]) else { return };
    let home = Home::with_data(mount.at.join("data"));
    let big = "x".repeat(30 << 20);
    for (free, word) in
        [("limits.min_free_mb=1", "limits.min_free_mb = 1"), ("limits.min_free_mb=0", "is full")]
    {
        let at_once = ["--set", "limits.disk_full_wait_s=0"];
        let ran = home.fed(&[&["enqueue", "-", "--set", free][..], &at_once].concat(), &big).wait().exits(2);
        ran.says(&[word, "nothing was taken up", "Free some space"]);
        assert!(spool(&home).is_empty());
    }
    home.fed(&["enqueue", "-", "--set", "limits.min_free_mb=1"], corpus(3)).wait().exits(0);
    home.run(&["--set", "limits.min_free_mb=1"], 0);
    home.holds(3);
}

#[test]
fn a_run_that_waits_for_its_input_can_be_asked_and_stopped() {
    let home = Home::new();
    let mut command = home.command(&["run", "--json", "-"]);
    command.stdin(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut pipe, corpus(3).as_bytes()).unwrap();
    let run = common::Running::of_child(child);
    poll("it can be asked", || home.status().filter(|status| status["run"].is_object()));
    run.signal(libc::SIGTERM);
    let report = run.wait().exits(130).report();
    assert_eq!((report.outcome(), report.n("documents")), ("interrupted", 0), "nothing was acknowledged");
    drop(pipe);
    home.run(&[], 0);
    assert!(spool(&home).is_empty(), "half an input is removed by the next opener");
}

#[test]
fn killed_at_any_moment_an_acknowledged_input_is_all_there() {
    const RECORDS: usize = 300;
    let seed = 20_261_201;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let home = Home::new();
    // Made first, so that every kill meets a folder; the second one shows how long one takes here.
    home.fed(&["enqueue", "-"], record("first", "some words")).wait().exits(0);
    let start = std::time::Instant::now();
    home.fed(&["enqueue", "-"], record("first", "some words")).wait().exits(0);
    let takes = u64::try_from(start.elapsed().as_micros()).unwrap();
    let (mut acknowledged, mut killed) = (1, 0);
    for round in 0..24 {
        let input: String = (0..RECORDS)
            .map(|i| record(&format!("{round}-{i}"), &format!("the words of {round} and {i}")))
            .collect();
        let mut enqueue = home.fed(&["enqueue", "-"], input);
        let until = std::time::Instant::now() + Duration::from_micros(random.u64(0..takes * 3));
        poll("the moment has come, or it is done", || {
            (enqueue.ended() || std::time::Instant::now() >= until).then_some(())
        });
        let ended = enqueue.ended();
        if !ended {
            enqueue.signal(libc::SIGKILL);
        }
        let ran = enqueue.wait();
        if ran.code == Some(0) {
            acknowledged += RECORDS;
        } else {
            killed += 1;
            assert_eq!(ran.code, None, "round {round}: {ran}");
        }
    }
    println!("{killed} of 24 were killed, {acknowledged} records acknowledged");
    assert!(killed >= 2 && acknowledged > 1, "the kills came at one moment: {killed} of 24");
    let report = home.run(&[], 0);
    assert!(report.n("chunks") >= acknowledged as u64, "{}", report.0);
    // Of an input that was not acknowledged all is there, or nothing, or what was enqueued of it and then the rest.
    assert_eq!((report.n("chunks") - 1) % RECORDS as u64, 0, "{}", report.0);
    assert_eq!(report.n("dead"), 0);
    home.holds(report.n("chunks"));
    assert!(spool(&home).is_empty(), "{:?}", spool(&home));
}
