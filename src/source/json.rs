//! Just enough of a JSON object to take its fields apart without changing a byte of them.
//!
//! serde_json reads each value and says where it ends; what is kept is the slice. So numbers in `meta` stay as
//! they were written, and values we do not use, however deep, are skipped without recursion.

use std::borrow::Cow;

use serde::de::IgnoredAny;

/// Why a line is not one JSON object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotJson {
    /// Kind, in words of ours or serde_json's; never a quote of the line.
    pub what: String,
    /// Byte of the line, from 1.
    pub column: usize,
    /// Whether the line just ended too early.
    pub cut: bool,
}

/// Calls `each` with every key (unescaped; `None` when no text can be equal to it) and the slice of its value,
/// in order. `Ok(false)`: the line is JSON, but not an object.
///
/// # Errors
/// The line is not JSON; the fields before the fault were handed out.
pub fn fields<'a>(line: &'a str, each: &mut dyn FnMut(Option<&str>, &'a str)) -> Result<bool, NotJson> {
    let mut cursor = Cursor { line, at: 0 };
    if cursor.peek() != Some(b'{') {
        cursor.value()?;
        cursor.end()?;
        return Ok(false);
    }
    cursor.at += 1;
    if cursor.peek() == Some(b'}') {
        cursor.at += 1;
        return cursor.end().map(|()| true);
    }
    loop {
        if cursor.peek().is_some_and(|byte| byte != b'"') {
            return Err(cursor.fault("expected a key in double quotes"));
        }
        let key = cursor.value()?;
        cursor.expect(b':', "expected `:`")?;
        let value = cursor.value()?;
        each(unescaped(key).as_deref(), value);
        if cursor.peek() == Some(b'}') {
            cursor.at += 1;
            return cursor.end().map(|()| true);
        }
        cursor.expect(b',', "expected `,` or `}`")?;
    }
}

struct Cursor<'a> {
    line: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.line.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')).count();
        self.line.as_bytes().get(self.at).copied()
    }

    /// The slice of one value of any kind.
    fn value(&mut self) -> Result<&'a str, NotJson> {
        self.peek();
        let (start, rest) = (self.at, &self.line[self.at..]);
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        match values.next() {
            Some(Ok(_)) => {
                self.at += values.byte_offset();
                Ok(&self.line[start..self.at])
            }
            Some(Err(error)) => {
                let text = error.to_string();
                let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what).to_owned();
                // Every line end was cut off, so serde_json's column counts the bytes of the slice.
                let column = start + error.column().max(1);
                // A cut inside a number is "invalid number" to serde_json, not an early end.
                let cut = error.is_eof() || (what == "invalid number" && column >= self.line.len());
                Err(NotJson { what, column, cut })
            }
            None => Err(self.fault("the line ends where a value is expected")),
        }
    }

    fn expect(&mut self, byte: u8, what: &str) -> Result<(), NotJson> {
        if self.peek() != Some(byte) {
            return Err(self.fault(what));
        }
        self.at += 1;
        Ok(())
    }

    fn end(&mut self) -> Result<(), NotJson> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.fault("something follows the record")),
        }
    }

    fn fault(&mut self, what: &str) -> NotJson {
        let cut = self.peek().is_none();
        NotJson { what: what.to_owned(), column: self.at + 1, cut }
    }
}

/// The text of a string token (with its quotes); `None` when it holds a lone surrogate.
pub fn unescaped(token: &str) -> Option<Cow<'_, str>> {
    let inner = token.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str(token).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// Whether valid JSON holds a `\uD800`-style escape without its other half. Backslashes stand only inside
/// strings, so no more of the grammar is needed.
pub fn lone_surrogate(json: &str) -> bool {
    let unit = |at: usize| -> Option<u16> {
        let hex = json.as_bytes().get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
    };
    let mut at = 0;
    while let Some(found) = json.as_bytes()[at..].iter().position(|byte| *byte == b'\\') {
        at += found;
        at += match unit(at) {
            Some(0xd800..=0xdbff) if matches!(unit(at + 6), Some(0xdc00..=0xdfff)) => 12,
            Some(0xd800..=0xdfff) => return true,
            Some(_) => 6,
            None => 2,
        };
    }
    false
}

/// Valid JSON without white space between its tokens; everything else stays byte by byte.
pub fn compact(json: &str) -> String {
    let (mut out, mut start) = (String::with_capacity(json.len()), 0);
    let (mut in_string, mut escaped) = (false, false);
    for (at, byte) in json.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b' ' | b'\t' | b'\r' | b'\n' if !in_string => {
                out.push_str(&json[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    out.push_str(&json[start..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Result<Vec<(String, String)>, NotJson> {
        let mut found = Vec::new();
        let mut each = |key: Option<&str>, value: &str| {
            found.push((key.unwrap_or("?").to_owned(), value.to_owned()));
        };
        fields(line, &mut each).map(|_| found)
    }

    #[test]
    fn values_are_slices_as_written() {
        let found =
            split(r#" {"a" : 1.10 ,"\u0062":[1, {"x":"}"}],"c":"\"","d":{},"e":tru"#.trim()).unwrap_err();
        assert!(found.cut);
        let found =
            split(r#" { "a" : 1.10 , "\u0062" : [1, {"x":"}"}],"c":"\"", "d":12345678901234567890123 } "#);
        let expected =
            [("a", "1.10"), ("b", r#"[1, {"x":"}"}]"#), ("c", r#""\"""#), ("d", "12345678901234567890123")];
        assert_eq!(found.unwrap(), expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(split("{ }").unwrap(), []);
        assert_eq!(fields("[1]", &mut |_, _| {}), Ok(false));
    }

    #[test]
    fn faults_say_where_and_whether_the_line_was_cut() {
        for (line, column, cut) in [
            (r#"{"a":1 "b":2}"#, 8, false),
            (r#"{"a":1}}"#, 8, false),
            (r#"{"a":1,}"#, 8, false),
            (r"{a:1}", 2, false),
            (r#"{"a":01}"#, 7, false),
            (r#"{"a":"#, 6, true),
            (r#"{"a":1"#, 7, true),
            (r#"{"a":1,"#, 8, true),
            (r#"{"a"#, 3, true),
            (r"{", 2, true),
            (r#"{"a":"\u00"#, 10, true),
            (r#"{"a":-"#, 6, true),
        ] {
            let fault = split(line).unwrap_err();
            assert_eq!((fault.column, fault.cut), (column, cut), "{line}: {fault:?}");
        }
    }

    #[test]
    fn b03_lone_surrogates_are_told_from_pairs() {
        for lone in [r"\ud83d end", r"\udc99", r"\ude00\ud83d", r"\ud83d\ud83d\ude00", r"a\\\uD800"] {
            assert!(lone_surrogate(lone), "{lone}");
        }
        for fine in [r"\ud83d\ude00", r"\\ud83d", r"\u00e9", r"\n\t\\", "plain é", r"\uD83D\uDE00\u0041"] {
            assert!(!lone_surrogate(fine), "{fine}");
        }
    }

    #[test]
    fn compact_drops_white_space_between_tokens_only() {
        assert_eq!(compact("{ \"a b\" : [ 1.10 ,\t\"x \\\" y\" ] }"), r#"{"a b":[1.10,"x \" y"]}"#);
    }

    #[test]
    fn deep_nesting_does_not_need_the_stack() {
        let deep = format!(r#"{{"m":{}1{}}}"#, "[".repeat(1_000_000), "]".repeat(1_000_000));
        assert_eq!(split(&deep).unwrap()[0].1.len(), 2_000_001);
        assert!(split(&"[".repeat(1_000_000)).unwrap_err().cut);
    }
}
