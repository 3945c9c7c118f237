//! JSON lines as people really have them: one test a case met in public (the inputs are in `tests/cases/`), and
//! random damage. Every test is about reading; what becomes of the records is tested elsewhere.

#[path = "common/reading.rs"]
mod reading;

use std::path::Path;

use forebay::{chunk::Digest, error::Class};
use proptest::prelude::*;
use reading::{LIMIT, Read, case, gzip, refused, zstd};

/// Offset, raw bytes and hash of a bad record are those of the file.
fn check_places(text: &[u8], read: &Read) {
    for bad in &read.bad {
        let start = usize::try_from(bad.at.offset).unwrap();
        let whole = &text[start..start + usize::try_from(bad.raw_len).unwrap()];
        let kept = if bad.class == Class::LineTooLong { whole.len().min(1_024) } else { whole.len() };
        assert_eq!(bad.raw, whole[..kept]);
        assert_eq!(bad.raw_hash, Digest::of(whole));
        let line = text[..start].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
        assert_eq!(bad.at.line, line);
        assert!(matches!(text.get(start + whole.len()), None | Some(b'\n' | b'\r')));
    }
    for good in &read.good {
        let start = usize::try_from(good.at.offset).unwrap();
        assert!(start == 0 || text[start - 1] == b'\n' || text[..start] == [0xef, 0xbb, 0xbf]);
    }
}

#[test]
fn a11_a13_text_is_taken_as_it_is() {
    let forms = Read::case("a11_unicode_forms.jsonl");
    assert_eq!((forms.good.len(), forms.bad.len()), (16, 0));
    assert_ne!(forms.good[0].text, forms.good[1].text, "NFC and NFD twins stay apart");
    let specials = Read::case("a13_special_tokens.jsonl");
    assert_eq!((specials.good.len(), specials.bad.len()), (9, 0));
    assert!(specials.good.iter().any(|record| record.text.contains("<pad>")));
}

#[test]
fn b01_blank_and_wrong_texts_are_classed_one_by_one() {
    let read = Read::case("b01_blank.jsonl");
    use Class::{BlankText, MissingField, WrongType};
    assert_eq!(read.ids(), ["b01-ok"]);
    let expected = [BlankText, BlankText, BlankText, WrongType, MissingField, WrongType, WrongType];
    let lines = [(1, expected[0]), (2, expected[1]), (3, expected[2]), (4, expected[3]), (5, expected[4])];
    assert_eq!(read.faults()[..5], lines);
    assert_eq!(read.faults()[5..], [(6, expected[5]), (7, expected[6]), (9, BlankText)]);
    assert_eq!(read.bad[0].doc_id.as_deref(), Some("b01-empty"), "the id is known though the record is bad");
}

#[test]
fn b02_a_nul_is_text_like_any_other() {
    let read = Read::case("b02_nul.jsonl");
    assert_eq!(read.ids(), ["b02-text", "b02-meta", "b02-id\0x", "b02-ok"]);
    assert_eq!(read.good[0].text, "a great e\0ort");
    assert_eq!(read.good[1].meta.as_deref(), Some("{\"producer\":\"Scanner 9\\u0000\"}"));
}

#[test]
fn b03_lone_surrogates_are_a_class_of_their_own() {
    let read = Read::case("b03_surrogates.jsonl");
    assert_eq!(read.ids(), ["b03-ok1", "b03-pair", "b03-ok2"]);
    assert_eq!(read.good[1].text, "good pair 😀");
    assert_eq!(read.faults(), [2, 3, 4].map(|line| (line, Class::JsonLoneSurrogate)));
    check_places(&std::fs::read(case("b03_surrogates.jsonl")).unwrap(), &read);
}

#[test]
fn b04_a_utf8_mark_is_dropped_at_the_start_only() {
    let read = Read::case("b04_bom.jsonl");
    assert_eq!(read.ids(), ["b04-1", "b04-2"]);
    assert_eq!(read.good[0].at.offset, 3);
    assert_eq!(read.good[0].text, "first row must survive");
    let twice =
        Read::bytes("{\"id\":1,\"text\":\"a\"}\n\u{feff}{\"id\":2,\"text\":\"b\"}\n".as_bytes(), LIMIT);
    assert_eq!((twice.ids(), twice.faults()), (vec!["1"], vec![(2, Class::JsonSyntax)]));
    assert_eq!(Read::bytes(&[0xef, 0xbb, 0xbf], LIMIT).faults(), []);
}

#[test]
fn b04_wide_encodings_are_refused_before_work_starts() {
    let why = refused(&case("b04_utf16le.jsonl"));
    assert!(why.contains("UTF-16 (little-endian)") && why.contains("iconv"), "{why}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wide.jsonl");
    for (head, name) in [
        (&b"\xfe\xff\0{"[..], "UTF-16 (big-endian)"),
        (b"\xff\xfe\0\0{\0\0\0", "UTF-32 (little-endian)"),
        (b"\0\0\xfe\xff", "UTF-32 (big-endian)"),
        (b"{\0\"\0", "UTF-16 (little-endian)"),
    ] {
        std::fs::write(&path, head).unwrap();
        assert!(refused(&path).contains(name));
        std::fs::write(&path, gzip(head)).unwrap();
        assert!(refused(&path).contains(name), "inside gzip as well");
    }
}

#[test]
fn b05_one_bad_byte_costs_one_line() {
    let read = Read::case("b05_invalid_utf8.jsonl");
    assert_eq!(read.ids(), ["b05-1", "b05-6"]);
    assert_eq!(read.faults(), [2, 3, 4, 5, 6].map(|line| (line, Class::InvalidUtf8)));
    check_places(&std::fs::read(case("b05_invalid_utf8.jsonl")).unwrap(), &read);
}

#[test]
fn b06_a_line_without_an_end_costs_one_line_and_no_more_than_the_limit() {
    let read = Read::file(&case("b06_huge_line.jsonl.gz"), 1 << 20);
    assert_eq!(read.ids(), ["b06-1", "b06-2"]);
    assert_eq!(read.faults(), [(2, Class::LineTooLong)]);
    let huge = &read.bad[0];
    assert_eq!(huge.raw.len(), 1_024);
    assert!(huge.raw.starts_with(br#"{"id":"b06-huge","text":"xxx"#));
    let whole = format!(
        "{{\"id\":\"b06-huge\",\"text\":\"{}\"}}",
        "x".repeat(usize::try_from(huge.raw_len).unwrap() - 27)
    );
    assert!(huge.raw_len > 48 << 20);
    assert_eq!(huge.raw_hash, Digest::of(whole.as_bytes()));
    assert!(huge.message.contains("limits.line_bytes"));
    assert_eq!(Read::file(&case("b06_huge_line.jsonl.gz"), 64 << 20).good.len(), 3);
}

#[test]
fn b07_long_unbroken_lines_are_read_like_others() {
    let read = Read::case("b07_unbroken.jsonl.gz");
    let blank = read.faults().iter().filter(|(_, class)| *class == Class::BlankText).count();
    assert_eq!(blank, read.bad.len(), "only texts of nothing but white space are refused");
    assert_eq!(read.ids().first(), Some(&"b07-ok1"));
    assert!(read.good.iter().filter(|record| record.text.len() > 1 << 20).count() >= 9);
}

#[test]
fn b11_b18_duplicates_and_one_token_texts_are_ordinary_records() {
    let read = Read::case("b11_duplicates.jsonl");
    assert_eq!(read.ids(), ["b11-a", "b11-b", "b11-a", "b11-a", "b11-c", "B11-A", "b11-a "]);
    assert!(
        read.good.windows(2).all(|pair| pair[0].at.offset < pair[1].at.offset),
        "later wins by its offset"
    );
    let read = Read::case("b18_one_token.jsonl");
    assert_eq!((read.good.len(), read.bad.len()), (10, 0));
}

#[test]
fn b13_odd_ids_stay_as_they_are_and_only_two_are_no_ids() {
    let read = Read::case("b13_odd_ids.jsonl");
    assert_eq!(read.faults(), [(5, Class::BadId), (19, Class::BadId)]);
    assert_eq!(read.good.len(), 17);
    let ids: std::collections::HashSet<_> = read.ids().into_iter().collect();
    assert_eq!(ids.len(), 17, "none was folded into another");
    assert!(
        ids.contains("a\nb") && ids.contains("\t") && ids.contains("550e8400-E29B-41d4-a716-446655440000")
    );
}

#[test]
fn b17_crlf_blank_lines_and_a_last_line_without_an_end() {
    let read = Read::case("b17_crlf.jsonl");
    let texts: Vec<_> = read.good.iter().map(|record| record.text.as_str()).collect();
    assert_eq!(texts, ["windows line 1", "windows line 2", "windows line 3"]);
    let read = Read::case("b17_blank_and_tail.jsonl");
    let places: Vec<_> = read.good.iter().map(|record| (record.doc_id.as_str(), record.at.line)).collect();
    assert_eq!(places, [("b17-t1", 2), ("b17-t2", 5), ("b17-t3", 6)]);
    assert_eq!(read.bad, []);
}

#[test]
fn b17_a_cut_tail_is_told_from_a_syntax_error() {
    let read = Read::case("b17_cut_tail.jsonl");
    assert_eq!(read.ids(), ["b17-c1", "b17-c2"]);
    assert_eq!(read.faults(), [(3, Class::JsonTruncated)]);
    assert_eq!((read.bad[0].doc_id.as_deref(), read.bad[0].at.offset), (Some("b17-c3"), 58));
    let whole = "{\"id\":\"é\",\"text\":\"t\\u00e9\",\"meta\":[-1.5e3,true,null,{\"a\":\"é\"}]}".as_bytes();
    for end in 1..whole.len() {
        assert_eq!(Read::bytes(&whole[..end], LIMIT).faults(), [(1, Class::JsonTruncated)], "cut at {end}");
        let ended = [&whole[..end], b"\n"].concat();
        let class = Read::bytes(&ended, LIMIT).bad[0].class;
        assert!(matches!(class, Class::JsonSyntax | Class::InvalidUtf8), "a newline ended it: {class}");
    }
}

#[test]
fn c02_two_bad_records_of_64_cost_two() {
    let read = Read::case("c02_poison_in_batch.jsonl");
    assert_eq!((read.good.len(), read.bad.len()), (62, 2));
    assert_eq!(read.faults()[0], (18, Class::BlankText));
}

#[test]
fn what_is_not_read_yet_is_said_with_what_to_do() {
    let why = refused(&case("b10_ragged.csv"));
    assert!(why.contains(".csv") && why.contains("JSON object a line"), "{why}");
    let why = refused(Path::new("/no/such/file.jsonl"));
    assert!(why.contains("/no/such/file.jsonl") && why.contains("check the path"), "{why}");
    assert!(refused(Path::new("/dev/null")).contains("not a regular file"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table");
    std::fs::write(&path, "PAR1....").unwrap();
    assert!(refused(&path).contains("Parquet"));
}

#[test]
fn b05_one_byte_too_many_never_costs_the_neighbours() {
    let good: String = (0..3).map(|n| format!("{{\"id\":{n},\"text\":\"t\"}}\n")).collect();
    // The damaged line is longer than what is looked at before reading.
    let long = format!("{{\"id\":9,\"text\":\"{}\"}}\n", "x".repeat(100_000));
    let damaged =
        [(format!("[{long}"), 1), (long.replacen('{', "{\n", 1), 2), (format!("id,text\n[{long}"), 2)];
    for (damaged, faults) in damaged {
        let read = Read::bytes(format!("{damaged}{good}").as_bytes(), LIMIT);
        assert_eq!((read.ids(), read.bad.len(), &read.incomplete), (vec!["0", "1", "2"], faults, &None));
    }
}

#[test]
fn an_empty_file_has_no_records() {
    for bytes in [&b""[..], b"\n", b"  \r\n\t\n"] {
        let read = Read::bytes(bytes, LIMIT);
        assert_eq!((read.good.len(), read.bad.len(), read.incomplete), (0, 0, None));
    }
    assert_eq!(Read::bytes(&gzip(b""), LIMIT).incomplete, None);
}

/// Lines of all kinds, then bytes of them overwritten, removed or added anywhere.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        4 => "[a-zé漢]{1,30}".prop_map(|text| format!("{{\"id\":\"i\",\"text\":\"{text}\",\"meta\":{{\"n\":1.10}}}}")),
        1 => Just("{\"id\":1,\"text\":\"\\ud83d\\ude00\",\"chunk_index\":3}".to_owned()),
        1 => Just("  ".to_owned()),
        1 => "[ -~]{0,80}".prop_map(String::from),
        1 => (900_usize..2_500).prop_map(|n| format!("{{\"id\":\"long\",\"text\":\"{}\"}}", "x".repeat(n))),
    ];
    let end = prop_oneof![Just("\n"), Just("\r\n")];
    let file = prop::collection::vec((line, end), 0..12)
        .prop_map(|lines| lines.into_iter().map(|(line, end)| line + end).collect::<String>().into_bytes());
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 0..6);
    (file, edits).prop_map(|(mut bytes, edits)| {
        for (place, byte, kind) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = place.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, byte),
                _ => bytes.truncate(at),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_bytes_every_place_is_exact(bytes in damaged()) {
        let head = bytes.first().copied().unwrap_or(b'{');
        // A first byte may turn the file into another format, which other tests are about.
        prop_assume!(!matches!(head, 0 | 0x1f | 0x28 | 0x50 | 0xef | 0xfd..) && bytes.get(1) != Some(&0));
        let read = Read::bytes(&bytes, 1_500);
        // Nor may it become JSON of another shape, of which nothing is read.
        prop_assume!(!read.incomplete.as_ref().is_some_and(|why| why.contains("it looks like")));
        check_places(&bytes, &read);
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).count();
        prop_assert_eq!(read.good.len() + read.bad.len(), lines, "each line is one item");
        for record in &read.good {
            prop_assert!(record.text.len() <= 1_500 && !record.text.trim().is_empty());
        }
        // The same compressed, in two parts cut anywhere.
        let (a, b) = bytes.split_at(bytes.len() / 2);
        for parts in [[gzip(a), gzip(b)], [zstd(a), zstd(b)]] {
            let packed = Read::bytes(&parts.concat(), 1_500);
            prop_assert_eq!((&packed.good, &packed.bad), (&read.good, &read.bad));
        }
    }
}
