//! Values of keys of a source: lists of strings, and keys that may be given once.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

/// Sets the value of a key, which must not have a value yet.
pub(super) fn set_once<T, E: de::Error>(field: &mut Option<T>, key: &'static str, value: T) -> Result<(), E> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(key)),
    }
}

/// One string or a list of strings.
#[derive(Debug)]
pub(super) struct Urls(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Urls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Urls;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, glob or URL, or a list of them")
            }

            fn visit_str<E: de::Error>(self, one: &str) -> Result<Urls, E> {
                Ok(Urls(vec![one.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut many: A) -> Result<Urls, A::Error> {
                let mut urls = Vec::new();
                while let Some(url) = many.next_element()? {
                    urls.push(url);
                }
                Ok(Urls(urls))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}
