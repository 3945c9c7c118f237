//! Files that are not JSON lines, though named so: told by their first bytes before each of their lines becomes a
//! dead letter.

use serde::de::IgnoredAny;

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
    if is_array(text) {
        Some(("a JSON array", "write one record a line: `jq -c '.[]' FILE > FILE.jsonl`"))
    } else if first == "{" && is_spread(text, whole) {
        Some(("JSON over several lines", "write one record a line: `jq -c . FILE > FILE.jsonl`"))
    } else if is_header(first, names) && !second.starts_with(['{', '[']) {
        let next =
            "CSV comes later; write one JSON object a line: `mlr --icsv --ojsonl cat FILE > FILE.jsonl`";
        Some(("CSV", next))
    } else {
        None
    }
}

/// Whether a list begins whose first member is an object, and goes on or ends behind it. A line that only begins so,
/// for one byte too many, is a bad line, and its neighbours may be good.
fn is_array(text: &str) -> bool {
    let Some(inside) = text.trim_start().strip_prefix('[').map(str::trim_start) else { return false };
    let rest = inside.starts_with('{').then(|| behind_value(inside)).flatten();
    rest.is_some_and(|rest| rest.trim_start().starts_with([',', ']']))
}

/// Whether the object that begins the text is followed by its end, or by another that begins as it did.
fn is_spread(text: &str, whole: bool) -> bool {
    let Some(rest) = behind_value(text.trim_start()) else { return false };
    match rest.lines().map(str::trim).find(|line| !line.is_empty()) {
        Some(next) => next == "{",
        None => whole,
    }
}

/// What follows the JSON value that begins the text.
fn behind_value(text: &str) -> Option<&str> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    text.get(values.byte_offset()..)
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
        for array in
            ["[{\"id\":1}]", "[\n{\"id\":1},\n{\"id\":2}\n]", "\n [ {\n}\n,", "[\n  {\n  \"id\": 1\n},\n{"]
        {
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
            "[{\"id\":1,\"text\":\"one byte too many\"}\n",
            "[{\"id\":1,\"text\":\"cut",
            "{\n\"id\":1,\"text\":\"a line that was cut in two\"}\nnext\n",
            "{\n\"id\":1,\"text\":\"cut",
            "id,text\n{\"id\":1,\"text\":\"cut",
        ] {
            assert_eq!(looks(lines), None, "{lines}");
        }
    }

    #[test]
    fn a_head_that_is_cut_is_judged_by_what_is_there() {
        let long = format!("{{\"id\":1,\"text\":\"{}", "é".repeat(9));
        assert_eq!(unlike_lines(&long.as_bytes()[..20], false, &settings()), None);
        let array = "[{\"text\":\"a\"},\"é";
        assert!(unlike_lines(&array.as_bytes()[..array.len() - 1], false, &settings()).is_some());
        assert_eq!(unlike_lines(b"id,text\n\xff,", false, &settings()), None);
    }
}
