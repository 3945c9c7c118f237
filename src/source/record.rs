//! One line to one record: which fields, of which types, within which limits.

use super::{Settings, json};
use crate::{chunk::DOC_ID_BYTES_MAX, error::Class};

/// The fields of a good record, not yet placed in its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Id of the document.
    pub doc_id: String,
    /// Its text.
    pub text: String,
    /// `meta` as compact JSON.
    pub meta: Option<String>,
    /// Place of the chunk, when the record is one.
    pub chunk_index: Option<u64>,
}

/// Why a line is no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Kind.
    pub class: Class,
    /// One sentence without a quote.
    pub message: String,
    /// The id, when that much could be read.
    pub doc_id: Option<String>,
}

/// The values of the fields we know, as slices of the line.
struct Slices<'a> {
    ids: Vec<Option<&'a str>>,
    text: Option<&'a str>,
    chunk_index: Option<&'a str>,
    meta: Option<&'a str>,
    /// A field of ours that stands twice.
    twice: Option<String>,
}

impl<'a> Slices<'a> {
    fn take(&mut self, names: &Settings, key: &str, value: &'a str) {
        let slot = if key == names.text_field {
            &mut self.text
        } else if key == names.chunk_index_field {
            &mut self.chunk_index
        } else if key == names.meta_field {
            &mut self.meta
        } else if let Some(n) = names.id_fields.iter().position(|name| name == key) {
            &mut self.ids[n]
        } else {
            return;
        };
        if slot.replace(value).is_some() {
            self.twice = Some(key.to_owned());
        }
    }

    /// Name and value of the first id field that is there.
    fn id<'n>(&self, names: &'n Settings) -> Option<(&'n str, &'a str)> {
        names
            .id_fields
            .iter()
            .zip(&self.ids)
            .find_map(|(name, value)| value.map(|value| (name.as_str(), value)))
    }
}

/// Reads one line. `last_unended`: it is the last line and no newline ends it, so what is wrong with its end is
/// a cut. A field of ours that stands twice is refused (there is no telling which one is meant); fields that are
/// not ours are passed over. `"meta": null` is no meta.
///
/// # Errors
/// See [`Problem`].
pub fn read(line: &[u8], last_unended: bool, names: &Settings) -> Result<Fields, Problem> {
    let text = std::str::from_utf8(line).map_err(|error| {
        let at = error.valid_up_to() + 1;
        if last_unended && error.error_len().is_none() {
            problem(
                Class::JsonTruncated,
                format!("the last line is cut off inside a character, at its byte {at}"),
            )
        } else {
            problem(Class::InvalidUtf8, format!("not valid UTF-8 at byte {at} of the line"))
        }
    })?;
    let mut slices = Slices {
        ids: vec![None; names.id_fields.len()],
        text: None,
        chunk_index: None,
        meta: None,
        twice: None,
    };
    let mut take = |key: Option<&str>, value| {
        if let Some(key) = key {
            slices.take(names, key, value);
        }
    };
    let outcome = json::fields(text, &mut take);
    let doc_id = slices.id(names).and_then(|(name, value)| id(name, value).ok());
    let found = match outcome {
        Err(fault) => Err(not_json(&fault, last_unended)),
        Ok(false) => Err(problem(Class::WrongType, "the line is JSON, but not an object".to_owned())),
        Ok(true) => fields(&slices, names),
    };
    found.map_err(|problem| Problem { doc_id: doc_id.filter(|_| problem.class != Class::BadId), ..problem })
}

fn not_json(fault: &json::NotJson, last_unended: bool) -> Problem {
    let json::NotJson { what, column, cut } = fault;
    if *cut && last_unended {
        problem(Class::JsonTruncated, format!("the last line is cut off at its byte {column} ({what})"))
    } else {
        problem(Class::JsonSyntax, format!("not valid JSON at byte {column} of the line: {what}"))
    }
}

fn fields(slices: &Slices<'_>, names: &Settings) -> Result<Fields, Problem> {
    if let Some(name) = &slices.twice {
        let message = format!("the field {name:?} stands twice in the record");
        return Err(problem(Class::JsonSyntax, message));
    }
    let (name, value) = slices
        .id(names)
        .ok_or_else(|| problem(Class::MissingField, format!("no field {}", names.id_fields.join(" or "))))?;
    let doc_id = id(name, value)?;
    let name = names.text_field.as_str();
    let value = slices.text.ok_or_else(|| problem(Class::MissingField, format!("no field {name:?}")))?;
    let text = string(name, value)?;
    if text.trim().is_empty() {
        let what = if text.is_empty() { "empty" } else { "only white space" };
        return Err(problem(Class::BlankText, format!("the field {name:?} is {what}")));
    }
    let chunk_index = slices.chunk_index.map(|value| index(&names.chunk_index_field, value)).transpose()?;
    let meta = match slices.meta {
        None | Some("null") => None,
        Some(value) if json::lone_surrogate(value) => return Err(surrogate(&names.meta_field)),
        Some(value) => Some(json::compact(value)),
    };
    Ok(Fields { doc_id, text, meta, chunk_index })
}

/// A string, or an integer as its decimal text, of 1 to 1,024 bytes.
fn id(name: &str, value: &str) -> Result<String, Problem> {
    let id = match kind(value) {
        "an integer" if value == "-0" => "0".to_owned(),
        "an integer" => value.to_owned(),
        "a string" => string(name, value)?,
        other => {
            let message = format!("the field {name:?} is {other}; it must be a string or an integer");
            return Err(problem(Class::WrongType, message));
        }
    };
    match id.len() {
        0 => Err(problem(Class::BadId, format!("the field {name:?} is empty"))),
        1..=DOC_ID_BYTES_MAX => Ok(id),
        n => {
            let message = format!("the field {name:?} has {n} bytes; an id has at most {DOC_ID_BYTES_MAX}");
            Err(problem(Class::BadId, message))
        }
    }
}

fn string(name: &str, value: &str) -> Result<String, Problem> {
    match kind(value) {
        "a string" => match json::unescaped(value) {
            Some(text) => Ok(text.into_owned()),
            None if json::lone_surrogate(value) => Err(surrogate(name)),
            None => {
                Err(problem(Class::JsonSyntax, format!("the field {name:?} has an escape that is not JSON")))
            }
        },
        other => {
            Err(problem(Class::WrongType, format!("the field {name:?} is {other}; it must be a string")))
        }
    }
}

/// A non-negative integer that every store can hold.
fn index(name: &str, value: &str) -> Result<u64, Problem> {
    let parsed = if kind(value) == "an integer" { value.parse::<u64>().ok() } else { None };
    parsed.filter(|n| i64::try_from(*n).is_ok()).ok_or_else(|| {
        let message = format!("the field {name:?} must be an integer from 0 to {}", i64::MAX);
        problem(Class::WrongType, message)
    })
}

/// The kind of a valid JSON value, in words.
fn kind(value: &str) -> &'static str {
    match value.as_bytes().first() {
        Some(b'"') => "a string",
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b't' | b'f') => "true or false",
        Some(b'n') => "null",
        _ if value.contains(['.', 'e', 'E']) => "a number that is not an integer",
        _ => "an integer",
    }
}

fn surrogate(name: &str) -> Problem {
    let message = format!("the field {name:?} holds a \\uD800-style escape without its other half");
    problem(Class::JsonLoneSurrogate, message)
}

const fn problem(class: Class, message: String) -> Problem {
    Problem { class, message, doc_id: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::settings;

    fn class(line: &str) -> Class {
        read(line.as_bytes(), false, &settings()).unwrap_err().class
    }

    #[test]
    fn ids_are_strings_or_integers_and_stay_as_written() {
        for (token, doc_id) in [
            ("42", "42"),
            ("-7", "-7"),
            ("-0", "0"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            (r#"" a\nb""#, " a\nb"),
        ] {
            let line = format!(r#"{{"id":{token},"text":"t"}}"#);
            assert_eq!(read(line.as_bytes(), false, &settings()).unwrap().doc_id, doc_id);
        }
        for token in ["1.0", "1e3", "true", "null", "[1]", "{}"] {
            assert_eq!(class(&format!(r#"{{"id":{token},"text":"t"}}"#)), Class::WrongType, "{token}");
        }
        assert_eq!(class(r#"{"text":"t"}"#), Class::MissingField);
        assert_eq!(class(r#"{"id":"","text":"t"}"#), Class::BadId);
        assert_eq!(class(&format!(r#"{{"id":"{}","text":"t"}}"#, "é".repeat(513))), Class::BadId);
        assert!(
            read(format!(r#"{{"id":"{}","text":"t"}}"#, "é".repeat(512)).as_bytes(), false, &settings())
                .is_ok()
        );
    }

    #[test]
    fn chunk_index_is_a_non_negative_integer() {
        for (token, index) in [("0", Some(0)), ("7", Some(7)), ("9223372036854775807", Some(i64::MAX as u64))]
        {
            let line = format!(r#"{{"id":"a","text":"t","chunk_index":{token}}}"#);
            assert_eq!(read(line.as_bytes(), false, &settings()).unwrap().chunk_index, index);
        }
        for token in ["-1", "1.0", "1e2", "\"1\"", "null", "9223372036854775808", "[]"] {
            assert_eq!(class(&format!(r#"{{"id":"a","text":"t","chunk_index":{token}}}"#)), Class::WrongType);
        }
    }

    #[test]
    fn meta_is_untouched_but_for_white_space() {
        let line =
            r#"{"meta": {"n": 12345678901234567890.10, "e": 1E400, "s": "a b\u00e9"}, "id":1,"text":"t"}"#;
        let fields = read(line.as_bytes(), false, &settings()).unwrap();
        let expected = r#"{"n":12345678901234567890.10,"e":1E400,"s":"a b\u00e9"}"#;
        assert_eq!(fields.meta.as_deref(), Some(expected));
        let none = read(br#"{"id":1,"text":"t","meta":null}"#, false, &settings()).unwrap();
        assert_eq!(none.meta, None);
        assert_eq!(class(r#"{"id":1,"text":"t","meta":["\udc99"]}"#), Class::JsonLoneSurrogate);
    }

    #[test]
    fn a_field_of_ours_that_stands_twice_is_refused() {
        assert_eq!(class(r#"{"id":1,"text":"a","te\u0078t":"b"}"#), Class::JsonSyntax);
        assert!(read(br#"{"id":1,"text":"a","x":1,"x":2,"doc_id":5}"#, false, &settings()).is_ok());
    }

    #[test]
    fn the_first_id_field_that_is_there_counts() {
        let both = read(br#"{"doc_id":"second","id":"first","text":"t"}"#, false, &settings()).unwrap();
        assert_eq!(both.doc_id, "first");
        let other = read(br#"{"doc_id":"second","text":"t"}"#, false, &settings()).unwrap();
        assert_eq!(other.doc_id, "second");
    }

    #[test]
    fn messages_never_quote_the_record() {
        for line in [
            r#"{"id":"hush1","text":"hush2"#,
            r#"{"id":"hush1","text":hush2}"#,
            r#"{"id":"hush1","text":["hush2"]}"#,
            r#"{"id":["hush1"],"text":"hush2"}"#,
            r#"{"id":"hush1","text":"hush2 \ud800"}"#,
            r#"{"id":"hush1","text":"hush2","chunk_index":"hush3"}"#,
            r#""hush""#,
        ] {
            for last in [false, true] {
                let problem = read(line.as_bytes(), last, &settings()).unwrap_err();
                assert!(!problem.message.contains("hush"), "{}", problem.message);
            }
        }
    }
}
