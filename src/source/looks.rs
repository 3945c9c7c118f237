//! Files that are not JSON lines, though named so: told by their first bytes before each of their lines becomes a
//! dead letter.

use super::{Settings, json};

/// What the head of a file is for certain, and what to do; `None` when a line of it is an object, or when it is
/// nothing we know. `whole`: the head is all of the file.
pub fn unlike_lines(head: &[u8], whole: bool, names: &Settings) -> Option<(&'static str, &'static str)> {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // Cut inside a character at its end; anything else is a matter of its line.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let complete = if whole { text } else { text.rsplit_once('\n').map_or("", |(lines, _)| lines) };
    // The last member of an array stands without a comma; it is no record of its own.
    let mut after = complete.lines().skip(1).map(|line| line.trim_start().starts_with(']'));
    let in_array = text.trim_start().starts_with('[');
    let mut last_member = || after.next().unwrap_or_default() && in_array;
    if complete.lines().any(|line| !last_member() && json::fields(line, &mut |_, _| {}) == Ok(true)) {
        return None;
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let (first, second) = (lines.next()?, lines.next().unwrap_or_default());
    if first.strip_prefix('[').is_some_and(|rest| format!("{rest}{second}").trim_start().starts_with('{')) {
        Some(("a JSON array", "write one record a line: `jq -c '.[]' FILE > FILE.jsonl`"))
    } else if first == "{" && second.starts_with('"') {
        Some(("JSON over several lines", "write one record a line: `jq -c . FILE > FILE.jsonl`"))
    } else if is_header(first, names) {
        let next =
            "CSV comes later; write one JSON object a line: `mlr --icsv --ojsonl cat FILE > FILE.jsonl`";
        Some(("CSV", next))
    } else {
        None
    }
}

/// Whether a line names the fields of a table, one of ours among them.
fn is_header(line: &str, names: &Settings) -> bool {
    let ours = |field: &str| {
        let field = field.trim().trim_matches('"');
        names.id_fields.iter().chain([&names.text_field]).any(|name| name.eq_ignore_ascii_case(field))
    };
    !line.starts_with(['{', '['])
        && line.contains([',', ';', '\t', '|'])
        && line.split([',', ';', '\t', '|']).any(ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::settings;

    #[test]
    fn what_a_file_is_instead() {
        let looks = |text: &str| unlike_lines(text.as_bytes(), true, &settings()).map(|(what, _)| what);
        for array in ["[{\"id\":1}]", "[\n{\"id\":1},\n{\"id\":2}\n]", "\n [ {\n", "[\n  {\n  \"id\": 1"] {
            assert_eq!(looks(array), Some("a JSON array"), "{array}");
        }
        assert_eq!(looks("{\n  \"id\": 1,\n  \"text\": \"x\"\n}\n"), Some("JSON over several lines"));
        for table in ["id,text\n1,a\n", "\"ID\";\"Text\"\n", "n\ttext"] {
            assert_eq!(looks(table), Some("CSV"), "{table}");
        }
        for lines in [
            "",
            "[1]\n{\"id\":1}\n",
            "[{\"id\":1}]\n{\"id\":1,\"text\":\"t\"}\n",
            "{\n{\"id\":1}",
            "text\n",
            "some text, and more",
            "{\"id\":1,\"text\":\n",
            "[1,2]",
        ] {
            assert_eq!(looks(lines), None, "{lines}");
        }
    }

    #[test]
    fn a_head_that_is_cut_is_judged_by_what_is_there() {
        let long = format!("{{\"id\":1,\"text\":\"{}", "é".repeat(9));
        assert_eq!(unlike_lines(&long.as_bytes()[..20], false, &settings()), None);
        let array = "[{\"text\":\"é";
        assert!(unlike_lines(&array.as_bytes()[..array.len() - 1], false, &settings()).is_some());
        assert_eq!(unlike_lines(b"id,text\n\xff,", false, &settings()), None);
    }
}
