//! How large a document is: its text, how deep its brackets nest, and its values once aliases are written out, which are
//! counted without keeping any. A few lines of aliases of aliases would fill any memory.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use crate::pipeline::limits::{MAX_FILE_BYTES, MAX_VALUES};

/// Deepest that brackets may nest: a parser's work grows with the product of depth and length.
const MAX_DEPTH: usize = 100;

/// One sentence on what is too large.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.len() > MAX_FILE_BYTES {
        return Err(format!(
            "the file has {} bytes, more than the {MAX_FILE_BYTES} of a pipeline; list data by globs, prefixes or braces",
            text.len()
        ));
    }
    if depth(text) > MAX_DEPTH {
        return Err(format!("brackets nest deeper than {MAX_DEPTH}; a pipeline is a flat list of operators"));
    }
    let left = Cell::new(Some(MAX_VALUES));
    // What else is wrong is told by who reads the file.
    let _ = Count(&left).deserialize(serde_yaml_ng::Deserializer::from_str(text));
    match left.get() {
        Some(_) => Ok(()),
        None => Err(format!(
            "the file stands for more than {MAX_VALUES} values once its aliases are written out; write fewer"
        )),
    }
}

/// The most brackets that are open at one place, those within quotes too.
fn depth(text: &str) -> usize {
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

/// Takes one from what is left for each value; `None` once nothing is.
#[derive(Clone, Copy)]
struct Count<'a>(&'a Cell<Option<usize>>);

impl Count<'_> {
    fn one<E: Error>(self) -> Result<(), E> {
        let left = self.0.get().and_then(|left| left.checked_sub(1));
        self.0.set(left);
        left.map(|_| ()).ok_or_else(|| E::custom("too many values"))
    }
}

impl<'de> DeserializeSeed<'de> for Count<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Count<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.one()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.one()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.one()
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<(), E> {
        self.one()
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<(), E> {
        self.one()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.one()
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.one()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.one()
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.one()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.one()?;
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.one()?;
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
    fn aliases_of_aliases_are_counted_and_not_kept() {
        let mut bomb = format!("a0: &a0 [{}x]\n", "x, ".repeat(99));
        for level in 1..9 {
            let before = format!("*a{}, ", level - 1).repeat(10);
            bomb += &format!("a{level}: &a{level} [{}]\n", before.trim_end_matches(", "));
        }
        let told = check(&bomb).unwrap_err();
        assert!(told.contains("more than 200000 values once its aliases"), "{told}");
    }

    #[test]
    fn a_few_aliases_are_no_bomb() {
        assert_eq!(
            check("mean: &m [0.5, 0.5]\nstd: *m\nother: !tag {a: ~, b: -1, c: 1.5, d: true}\n"),
            Ok(())
        );
        assert_eq!(check("not: [valid"), Ok(()), "others tell");
        assert_eq!(check(""), Ok(()));
    }

    #[test]
    fn deep_and_long_files_are_refused_before_they_are_parsed() {
        assert!(check(&"[".repeat(500_000)).unwrap_err().contains("nest deeper than 100"));
        assert!(check(&"- ".repeat(100_000)).is_ok(), "the parser has a limit of its own");
        assert!(
            check(&" ".repeat(MAX_FILE_BYTES + 1))
                .unwrap_err()
                .contains("more than the 1048576 of a pipeline")
        );
    }
}
