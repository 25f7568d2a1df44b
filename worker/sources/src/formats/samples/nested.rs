//! Nested values of LitData: lists and objects in a compact binary form, converted to JSON text. Numbers that JSON does not
//! represent are `NaN`, `Infinity` and `-Infinity`, as in the module `json` of Python.

use std::fmt::Write;

use serde::de::IgnoredAny;

/// Maximum nesting depth of lists and objects, as for JSON lines.
const MAX_DEPTH: usize = crate::limits::MAX_JSON_DEPTH;
/// Maximum size of the JSON text relative to the value, because the keys of records are stored once.
const MAX_EXPANSION: usize = 256;
/// Values whose first byte is larger are plain JSON text.
const MAX_TAG: u8 = 0x20;
/// The numbers of Python that JSON does not represent. A token is before the tokens that it contains.
const NONFINITE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Converts a value to JSON text.
pub(super) fn nested_json(bytes: &[u8]) -> Result<String, String> {
    match bytes.first() {
        Some(tag) if *tag <= MAX_TAG => {
            let max_text = 4_096 + bytes.len().saturating_mul(MAX_EXPANSION);
            let mut parser = NestedParser { rest: bytes, text: String::new(), max_text };
            parser.value(0)?;
            Ok(parser.text)
        }
        _ => json_text(bytes).map(str::to_owned),
    }
}

/// Checks that the bytes are JSON text, which may contain `NaN` and `Infinity`.
fn json_text(bytes: &[u8]) -> Result<&str, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("the nested value is not valid JSON: {error}");
    let text = std::str::from_utf8(bytes).map_err(|error| wrong(&error))?;
    let Err(error) = serde_json::from_str::<IgnoredAny>(text) else { return Ok(text) };
    match serde_json::from_str::<IgnoredAny>(&without_nonfinite(text)) {
        Ok(_) => Ok(text),
        Err(_) => Err(wrong(&error)),
    }
}

/// Replaces `NaN` and `Infinity` outside of strings with `null`.
fn without_nonfinite(text: &str) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut chars = text.chars();
    let (mut is_string, mut is_escaped) = (false, false);
    loop {
        let rest = chars.as_str();
        if !is_string && let Some(token) = NONFINITE.iter().find(|token| rest.starts_with(**token)) {
            replaced.push_str("null");
            chars = rest[token.len()..].chars();
            continue;
        }
        let Some(next) = chars.next() else { return replaced };
        replaced.push(next);
        is_string ^= next == '"' && !is_escaped;
        is_escaped = is_string && next == '\\' && !is_escaped;
    }
}

struct NestedParser<'a> {
    rest: &'a [u8],
    text: String,
    max_text: usize,
}

impl<'a> NestedParser<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let split = self.rest.split_at_checked(count);
        let (taken, rest) = split.ok_or("a nested value is truncated: the file is corrupted")?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    fn count(&mut self) -> Result<usize, String> {
        Ok(super::u32_at(self.take(4)?) as usize)
    }

    fn eight(&mut self) -> Result<[u8; 8], String> {
        let bytes = self.take(8)?.first_chunk();
        Ok(*bytes.expect("eight bytes were taken"))
    }

    /// A string with its length, as a JSON string.
    fn string(&mut self) -> Result<String, String> {
        let count = self.count()?;
        let text = std::str::from_utf8(self.take(count)?).map_err(|_| "a nested text is not valid UTF-8")?;
        serde_json::to_string(text).map_err(|error| error.to_string())
    }

    fn push_string(&mut self) -> Result<(), String> {
        let text = self.string()?;
        self.text.push_str(&text);
        Ok(())
    }

    fn push_integer(&mut self) -> Result<(), String> {
        let value = i64::from_le_bytes(self.eight()?);
        write!(self.text, "{value}").map_err(|error| error.to_string())
    }

    fn push_float(&mut self) -> Result<(), String> {
        let value = f64::from_le_bytes(self.eight()?);
        let text = match serde_json::Number::from_f64(value) {
            Some(number) => number.to_string(),
            None if value.is_nan() => "NaN".to_owned(),
            None if value > 0.0 => "Infinity".to_owned(),
            None => "-Infinity".to_owned(),
        };
        self.text.push_str(&text);
        Ok(())
    }

    fn push_bool(&mut self) -> Result<(), String> {
        let text = if self.byte()? == 0 { "false" } else { "true" };
        self.text.push_str(text);
        Ok(())
    }

    fn push_list(&mut self, push: fn(&mut Self) -> Result<(), String>) -> Result<(), String> {
        let count = self.count()?;
        self.text.push('[');
        for item in 0..count {
            self.separate(item);
            push(self)?;
        }
        self.text.push(']');
        Ok(())
    }

    fn separate(&mut self, item: usize) {
        if item > 0 {
            self.text.push(',');
        }
    }

    fn value(&mut self, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("a nested value is more than {MAX_DEPTH} levels deep"));
        }
        match self.byte()? {
            0 => {
                let count = self.count()?;
                let text = json_text(self.take(count)?)?;
                self.text.push_str(text);
                Ok(())
            }
            1 => self.push_list(Self::push_string),
            2 => self.push_list(Self::push_integer),
            3 => self.push_list(Self::push_float),
            4 => self.push_list(Self::push_bool),
            5 => self.object(depth),
            6 => self.records(),
            7 => self.push_string(),
            8 => self.push_integer(),
            9 => self.push_float(),
            10 => self.push_bool(),
            11 => {
                self.text.push_str("null");
                Ok(())
            }
            tag => Err(format!("the tag {tag} of a nested value is unknown")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), String> {
        let count = self.count()?;
        self.text.push('{');
        for item in 0..count {
            self.separate(item);
            self.push_string()?;
            self.text.push(':');
            self.value(depth + 1)?;
        }
        self.text.push('}');
        Ok(())
    }

    /// A list of objects with the same keys.
    fn records(&mut self) -> Result<(), String> {
        let (rows, keys) = (self.count()?, self.count()?);
        // Every key needs four bytes, and every value one byte.
        if keys == 0 || keys > self.rest.len() / 4 {
            return Err("a nested value is truncated: the file is corrupted".to_owned());
        }
        let keys = (0..keys).map(|_| self.string()).collect::<Result<Vec<_>, _>>()?;
        self.text.push('[');
        for row in 0..rows {
            self.separate(row);
            self.text.push('{');
            for (item, key) in keys.iter().enumerate() {
                self.separate(item);
                self.text.push_str(key);
                self.text.push(':');
                match self.byte()? {
                    0x10 => self.text.push_str("null"),
                    0x11 => self.push_string()?,
                    0x12 => self.push_integer()?,
                    0x13 => self.push_float()?,
                    0x14 => self.push_bool()?,
                    tag => return Err(format!("the tag {tag} of a nested value is unknown")),
                }
            }
            self.text.push('}');
            if self.text.len() > self.max_text {
                return Err("the keys of a nested value are too long for its records".to_owned());
            }
        }
        self.text.push(']');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_become_json() {
        assert_eq!(nested_json(b"{\"a\": 1}").unwrap(), "{\"a\": 1}");
        assert_eq!(nested_json(b"\x04\x02\0\0\0\x01\0").unwrap(), "[true,false]");
        assert_eq!(nested_json(b"\x01\x01\0\0\0\x02\0\0\0a\"").unwrap(), "[\"a\\\"\"]");
        let record = b"\x06\x01\0\0\0\x01\0\0\0\x01\0\0\0k\x10";
        assert_eq!(nested_json(record).unwrap(), "[{\"k\":null}]");
        for length in 0..record.len() {
            assert!(nested_json(&record[..length]).is_err(), "{length}");
        }
        let deep = [[5, 1, 0, 0, 0, 0, 0, 0, 0].repeat(200), vec![11]].concat();
        assert!(nested_json(&deep).unwrap_err().contains("levels deep"));
    }

    #[test]
    fn numbers_that_json_does_not_represent_are_those_of_python() {
        let numbers = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5];
        let elements: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let list = [b"\x03\x04\0\0\0".as_slice(), &elements].concat();
        assert_eq!(nested_json(&list).unwrap(), "[NaN,Infinity,-Infinity,0.5]");
        let record = [b"\x06\x01\0\0\0\x01\0\0\0\x01\0\0\0k\x13".as_slice(), &elements[..8]].concat();
        assert_eq!(nested_json(&record).unwrap(), "[{\"k\":NaN}]");
        for text in ["NaN", "-Infinity", r#"{"a\"NaN": [NaN, -Infinity], "b\\": Infinity}"#] {
            assert_eq!(nested_json(text.as_bytes()).unwrap(), text);
        }
        for text in ["nan", "--Infinity", "1NaN", "NaN1", "NaNNaN", "{NaN: 1}", "[NaN", r#"["a\": NaN]"#] {
            assert!(nested_json(text.as_bytes()).unwrap_err().contains("is not valid JSON"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_json_or_an_error(bytes in prop::collection::vec(0_u8..16, 0..60)) {
            if let Ok(text) = nested_json(&bytes) {
                prop_assert!(serde_json::from_str::<IgnoredAny>(&text).is_ok(), "{}", text);
            }
        }
    }
}
