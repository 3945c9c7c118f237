//! Compressed inputs as they come: several parts, cut, padded, damaged, misnamed; and what changes while it is read.

#[path = "common/reading.rs"]
mod reading;

use std::{io::Write as _, path::PathBuf};

use forebay::{error::Class, source};
use proptest::prelude::*;
use reading::{LIMIT, Read, case, gzip, settings, zstd};

#[test]
fn b08_every_member_of_a_gzip_is_read() {
    let read = Read::case("b08_multimember.jsonl.gz");
    assert_eq!(read.ids(), ["b08-1", "b08-2", "b08-3", "b08-4", "b08-5", "b08-6"]);
    assert_eq!((read.bad.len(), read.incomplete), (0, None));
    assert_eq!(read.good.last().unwrap().at.line, 6);
}

#[test]
fn b08_zero_padding_is_fine_and_other_garbage_is_reported() {
    let read = Read::case("b08_trailing_garbage.jsonl.gz");
    assert_eq!((read.good.len(), read.bad.len()), (6, 0));
    assert!(read.incomplete.unwrap().contains("not gzip"));
    let bytes = std::fs::read(case("b08_trailing_garbage.jsonl.gz")).unwrap();
    let padded = Read::bytes(&bytes[..bytes.len() - b"not gzip".len()], LIMIT);
    assert_eq!((padded.good.len(), padded.incomplete), (6, None));
}

#[test]
fn b08_a_cut_gzip_keeps_what_came_before() {
    let read = Read::case("b08_truncated.jsonl.gz");
    assert_eq!(read.good.len(), 25, "every row whose bytes are there");
    assert!(read.incomplete.as_ref().unwrap().contains("cut off"), "{:?}", read.incomplete);
    assert_eq!(read.faults(), [(26, Class::JsonTruncated)]);
}

#[test]
fn b08_a_gzip_is_told_by_its_content() {
    let read = Read::case("b08_wrong_extension.jsonl");
    assert_eq!((read.good.len(), read.bad.len(), read.incomplete), (6, 0, None));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plain.jsonl.gz");
    std::fs::write(&path, "{\"id\":1,\"text\":\"plain\"}\n").unwrap();
    assert_eq!(Read::file(&path, LIMIT).ids(), ["1"]);
}

#[test]
fn b08_a_gzip_damaged_in_the_middle_says_so() {
    let lines: String =
        (0..20_000).map(|n| format!("{{\"id\":{n},\"text\":\"t {}\"}}\n", n * 7_919)).collect();
    let mut bytes = gzip(lines.as_bytes());
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xff);
    let (good, why) = Read::started(&bytes);
    assert!(good > 1_000 && why.contains("damaged"), "{good}: {why}");
}

#[test]
fn b08_every_frame_of_a_zstd_is_read() {
    let read = Read::case("b08_multiframe.jsonl.zst");
    assert_eq!(read.ids(), ["b08-1", "b08-2", "b08-3", "b08-4", "b08-5", "b08-6"]);
    assert_eq!((read.bad.len(), read.incomplete), (0, None));
    // A frame to be skipped first, between and last; an empty one; a line cut by a frame's end; zero padding.
    let skipped = |kind: u8| [&[kind, 0x2a, 0x4d, 0x18, 5, 0, 0, 0][..], b"{junk"].concat();
    let (a, b) = (zstd(b"{\"id\":1,\"te"), zstd(b"xt\":\"one\"}\n{\"id\":2,\"text\":\"two\"}\n"));
    for kind in [0x50, 0x57, 0x5f] {
        let skip = skipped(kind);
        let file = [&skip, &a, &skip, &zstd(b""), &b, &skip, &vec![0; 600_000]].map(Vec::as_slice).concat();
        let read = Read::bytes(&file, LIMIT);
        assert_eq!((read.ids(), read.bad.len(), &read.incomplete), (vec!["1", "2"], 0, &None));
    }
}

#[test]
fn b08_a_zstd_that_is_cut_damaged_or_dirty_says_so() {
    let lines: String =
        (0..20_000).map(|n| format!("{{\"id\":{n},\"text\":\"t {}\"}}\n", n * 7_919)).collect();
    let whole = zstd(lines.as_bytes());
    let cut = Read::bytes(&whole[..whole.len() / 2], LIMIT);
    assert!(cut.good.len() > 1_000 && cut.incomplete.unwrap().contains("zstd stream is cut off"));
    let dirty = Read::bytes(&[&whole[..], b"\0\0not zstd"].concat(), LIMIT);
    assert_eq!(dirty.good.len(), 20_000);
    let why = dirty.incomplete.unwrap();
    assert!(why.contains(&format!("not zstd follow the last frame from byte {}", whole.len() + 2)), "{why}");
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 64].fill(0xff);
    assert!(Read::started(&damaged).1.contains("damaged"));
}

#[test]
fn b08_a_window_that_would_cost_memory_without_end_is_refused() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.long_distance_matching(true).unwrap();
    encoder.window_log(29).unwrap();
    encoder.write_all(b"{\"id\":1,\"text\":\"one\"}\n").unwrap();
    let (good, why) = Read::started(&encoder.finish().unwrap());
    assert!(good == 0 && why.contains("window") && why.contains("zstd -d --long=31"), "{why}");
}

/// A file that is open and was read up to its second record, and its path.
fn half_read(folder: &tempfile::TempDir) -> (Box<dyn source::Source>, PathBuf) {
    let path = folder.path().join("in.jsonl");
    let lines: String = (0..20_000).map(|n| format!("{{\"id\":{n},\"text\":\"some text\"}}\n")).collect();
    std::fs::write(&path, lines).unwrap();
    let mut source = source::open(&path, &settings(), LIMIT).unwrap();
    source.next().unwrap().unwrap();
    (source, path)
}

#[test]
fn a_file_that_changes_while_it_is_read_is_not_taken_for_read() {
    let folder = tempfile::tempdir().unwrap();
    let end = |mut source: Box<dyn source::Source>| {
        while source.next().unwrap().is_some() {}
        source.incomplete().map(str::to_owned)
    };
    let (source, _) = half_read(&folder);
    assert_eq!(end(source), None);
    // It grew; it was written anew with the same size; another file took its name.
    let (source, path) = half_read(&folder);
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"\n").unwrap();
    assert!(end(source).unwrap().contains("changed while it was read"));
    let (source, path) = half_read(&folder);
    std::fs::File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert!(end(source).unwrap().contains("changed"));
    let (source, path) = half_read(&folder);
    std::fs::copy(&path, folder.path().join("other")).unwrap();
    std::fs::rename(folder.path().join("other"), &path).unwrap();
    assert!(end(source).unwrap().contains("changed"));
    // One that was removed was read whole all the same.
    let (source, path) = half_read(&folder);
    std::fs::remove_file(path).unwrap();
    assert_eq!(end(source), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_cut_anywhere_never_panics_and_is_reported(cut in 4_usize..120, pack in 0_usize..2) {
        let whole = [gzip, zstd][pack](b"{\"id\":1,\"text\":\"one\"}\n{\"id\":2,\"text\":\"two, and some more of it\"}\n");
        prop_assume!(cut < whole.len());
        let read = Read::bytes(&whole[..cut], LIMIT);
        prop_assert!(read.incomplete.is_some());
        prop_assert!(read.bad.iter().all(|bad| bad.class == Class::JsonTruncated));
    }
}
