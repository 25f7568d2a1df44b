//! A parsed YAML file with the line of each value, for error messages.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_path_to_error::{Path, Segment};
use serde_saphyr::Spanned;

use super::options::options;

/// A value in a file.
#[derive(Debug)]
pub(crate) struct Document {
    /// Counted from 1.
    pub(crate) line: usize,
    /// What the value is in words, such as "text `many`" or "a list".
    pub(crate) description: String,
    entries: Vec<DocumentEntry>,
    items: Vec<Document>,
}

#[derive(Debug)]
struct DocumentEntry {
    key: String,
    key_line: usize,
    value: Document,
}

impl Document {
    /// Parses a file. `None` if the file is invalid or contains a key that is a list or a mapping.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_saphyr::from_str_with_options(text, options()).ok()
    }

    /// The line of a key of this mapping.
    pub(crate) fn line_of_key(&self, key: &str) -> Option<usize> {
        self.entry(key).map(|entry| entry.key_line)
    }

    /// The value of a key of this mapping.
    pub(crate) fn value_of_key(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The item of this list at an index.
    pub(crate) fn item(&self, index: usize) -> Option<&Self> {
        self.items.get(index)
    }

    /// The value at a path.
    pub(super) fn value_at(&self, path: &Path) -> Option<&Self> {
        path.iter().try_fold(self, |value, segment| match segment {
            Segment::Seq { index } => value.item(*index),
            Segment::Map { key } | Segment::Enum { variant: key } => value.value_of_key(key),
            Segment::Unknown => None,
        })
    }

    fn entry(&self, key: &str) -> Option<&DocumentEntry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    fn scalar(description: String) -> Self {
        Self { line: 0, description, entries: Vec::new(), items: Vec::new() }
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Unlocated>::deserialize(deserializer)?;
        Ok(Self { line: line_of(&spanned), ..spanned.value.0 })
    }
}

fn line_of<T>(spanned: &Spanned<T>) -> usize {
    usize::try_from(spanned.referenced.line()).unwrap_or(usize::MAX)
}

/// A value whose line is not set.
struct Unlocated(Document);

impl<'de> Deserialize<'de> for Unlocated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor).map(Self)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Document, E> {
        Ok(Document::scalar(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Document, E> {
        Ok(Document::scalar(value.to_string()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Document, E> {
        Ok(Document::scalar(value.to_string()))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Document, E> {
        Ok(Document::scalar(value.to_string()))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Document, E> {
        Ok(Document::scalar(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Document, E> {
        Ok(Document::scalar(value.to_string()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Document, E> {
        Ok(Document::scalar(format!("text `{value}`")))
    }

    fn visit_unit<E: Error>(self) -> Result<Document, E> {
        Ok(Document::scalar("nothing".to_owned()))
    }

    fn visit_none<E: Error>(self) -> Result<Document, E> {
        self.visit_unit()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Document, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Document { items, ..Document::scalar("a list".to_owned()) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Document, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<Spanned<String>>()? {
            let key_line = line_of(&key);
            entries.push(DocumentEntry { key: key.value, key_line, value: access.next_value()? });
        }
        Ok(Document { entries, ..Document::scalar("a mapping".to_owned()) })
    }
}
