//! The columns whose value is the same in every row of a shard.

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::schema::{ColumnType, ScalarType};

/// A column that has one value in all rows of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardValue {
    /// The name of the column in the data.
    pub name: String,
    /// The type of an integer column, `Int32` or `Int64`; `None` for text.
    pub integer: Option<ScalarType>,
    /// The value as text, which is a decimal number in an integer column; `None` for null.
    pub text: Option<String>,
}

impl ShardValue {
    /// Creates an integer value of type `Int64`.
    pub fn int64(name: &str, value: i64) -> Self {
        Self { name: name.to_owned(), integer: Some(ScalarType::Int64), text: Some(value.to_string()) }
    }

    /// Creates a text value.
    pub fn text(name: &str, value: &str) -> Self {
        Self { name: name.to_owned(), integer: None, text: Some(value.to_owned()) }
    }

    /// The type of the column.
    pub fn column_type(&self) -> ColumnType {
        self.integer.map_or(ColumnType::Utf8, ColumnType::Scalar)
    }
}

/// The values of a shard. Clones share their memory, because many shards have the same values, such as the images of a class.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct ShardValues(Option<Arc<[ShardValue]>>);

impl From<Vec<ShardValue>> for ShardValues {
    fn from(values: Vec<ShardValue>) -> Self {
        Self((!values.is_empty()).then(|| values.into()))
    }
}

impl Deref for ShardValues {
    type Target = [ShardValue];

    fn deref(&self) -> &[ShardValue] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<'a> IntoIterator for &'a ShardValues {
    type Item = &'a ShardValue;
    type IntoIter = std::slice::Iter<'a, ShardValue>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for ShardValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

impl Serialize for ShardValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.deref().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ShardValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

impl ShardValues {
    /// Makes equal values share their memory, for example after they were decoded.
    pub fn share<'a>(all: impl IntoIterator<Item = &'a mut Self>) {
        let mut shared = SharedValues::default();
        all.into_iter().for_each(|values| shared.share(values));
    }
}

/// The different values of several shards.
#[derive(Debug, Default)]
pub struct SharedValues(HashSet<ShardValues>);

impl SharedValues {
    /// Replaces values by equal values of an earlier shard, which share their memory.
    pub fn share(&mut self, values: &mut ShardValues) {
        if values.is_empty() {
            return;
        }
        match self.0.get(values) {
            Some(earlier) => *values = earlier.clone(),
            None => {
                self.0.insert(values.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_with_equal_values_share_them() {
        let values = |label| -> ShardValues {
            vec![ShardValue::int64("label", label), ShardValue::text("class", "a")].into()
        };
        let mut all = [values(1), values(2), values(1), ShardValues::default()];
        let before = all.clone();
        ShardValues::share(&mut all);
        assert_eq!(all, before);
        assert!(std::ptr::eq(&*all[0], &*all[2]));
        assert!(!std::ptr::eq(&*all[0], &*all[1]));
    }

    #[test]
    fn values_are_stored_as_a_list() {
        let values = ShardValues::from(vec![ShardValue::int64("y", 1)]);
        let text = serde_json::to_string(&values).unwrap();
        assert_eq!(text, r#"[{"name":"y","integer":"int64","text":"1"}]"#);
        assert_eq!(serde_json::from_str::<ShardValues>(&text).unwrap(), values);
        assert_eq!(serde_json::from_str::<ShardValues>("[]").unwrap(), ShardValues::default());
    }
}
