//! Size limits of a YAML document: bytes, nesting depth of brackets, and number of values after alias expansion. The values
//! are counted without being stored, because a few lines of nested aliases can expand to a huge number of values.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use crate::pipeline::limits::{MAX_FILE_BYTES, MAX_VALUES};

/// Maximum nesting depth of brackets. The parse time grows with the product of depth and length.
const MAX_BRACKET_DEPTH: usize = 100;

/// Checks the size of a document.
///
/// # Errors
/// Returns a message that names the exceeded limit.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.len() > MAX_FILE_BYTES {
        return Err(format!(
            "the file is {} bytes long; the limit is {MAX_FILE_BYTES} bytes; use globs, prefixes or braces in URLs",
            text.len()
        ));
    }
    if bracket_depth(text) > MAX_BRACKET_DEPTH {
        return Err(format!(
            "brackets are nested more than {MAX_BRACKET_DEPTH} levels deep; write a flat list of operators"
        ));
    }
    let left = Cell::new(Some(MAX_VALUES));
    // The caller parses the document again and reports syntax errors.
    let _ = ValueCounter(&left).deserialize(serde_yaml_ng::Deserializer::from_str(text));
    match left.get() {
        Some(_) => Ok(()),
        None => Err(format!(
            "the file has more than {MAX_VALUES} values after alias expansion; use fewer aliases"
        )),
    }
}

/// The nesting depth of brackets, including brackets in quotes.
fn bracket_depth(text: &str) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

/// Counts values down from the limit. `None` means that the limit is exceeded.
#[derive(Clone, Copy)]
struct ValueCounter<'a>(&'a Cell<Option<usize>>);

impl ValueCounter<'_> {
    fn count_value<E: Error>(self) -> Result<(), E> {
        let left = self.0.get().and_then(|left| left.checked_sub(1));
        self.0.set(left);
        left.map(|_| ()).ok_or_else(|| E::custom("too many values"))
    }
}

impl<'de> DeserializeSeed<'de> for ValueCounter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueCounter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.count_value()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.count_value()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.count_value()
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<(), E> {
        self.count_value()
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<(), E> {
        self.count_value()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.count_value()
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.count_value()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.count_value()
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.count_value()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.count_value()?;
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.count_value()?;
        while entries.next_key_seed(self)?.is_some() {
            entries.next_value_seed(self)?;
        }
        Ok(())
    }

    /// A tagged value.
    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<(), A::Error> {
        let ((), value) = tagged.variant_seed(self)?;
        value.newtype_variant_seed(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_aliases_are_counted_without_being_expanded() {
        let mut bomb = format!("a0: &a0 [{}x]\n", "x, ".repeat(99));
        for level in 1..9 {
            let before = format!("*a{}, ", level - 1).repeat(10);
            bomb += &format!("a{level}: &a{level} [{}]\n", before.trim_end_matches(", "));
        }
        let error = check(&bomb).unwrap_err();
        assert!(error.contains("more than 200000 values after alias expansion"), "{error}");
    }

    #[test]
    fn a_few_aliases_are_accepted() {
        assert_eq!(
            check("mean: &m [0.5, 0.5]\nstd: *m\nother: !tag {a: ~, b: -1, c: 1.5, d: true}\n"),
            Ok(())
        );
        assert_eq!(check("not: [valid"), Ok(()), "the parser reports syntax errors");
        assert_eq!(check(""), Ok(()));
    }

    #[test]
    fn deep_and_long_files_are_rejected_before_they_are_parsed() {
        assert!(check(&"[".repeat(500_000)).unwrap_err().contains("nested more than 100 levels deep"));
        assert!(check(&"- ".repeat(100_000)).is_ok(), "the parser limits the depth of block lists");
        assert!(check(&" ".repeat(MAX_FILE_BYTES + 1)).unwrap_err().contains("limit is 1048576"));
    }
}
