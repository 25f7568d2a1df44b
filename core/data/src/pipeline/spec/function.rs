//! The parameters of `map` and `filter_function`: a Python function, what it is given, what it returns, and its bounds.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::schema::{ColumnType, ScalarType};

/// Parameters of `map` and of `filter_function`. The function is given a dict of NumPy arrays with an entry per column,
/// the first axis being rows. `map`: it returns such a dict with as many rows. `filter_function`: it returns one truth
/// value per row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// `package.module:function`, importable on workers; with `code` a name for messages.
    pub function: String,
    /// The function as base64 of what cloudpickle makes of it, in place of an import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Folders on workers in which modules are looked for first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<String>,
    /// Says which state of the module it is: rows behind a function without `code` are kept in caches only where this
    /// is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Columns that it is given; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Columns that `map` adds or replaces; none of `filter_function`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, FunctionOutput>,
    /// Python and packages that it was written for: a worker with others refuses the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<FunctionEnvironment>,
    /// Most time for one call, in seconds.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u32,
    /// Most memory of one process, in bytes; `512MiB` or `1GiB` in a file.
    #[serde(default = "default_memory", with = "size")]
    pub memory: u64,
    /// Most rows of one call; the engine's chunk where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u32>,
    /// Whether it draws random numbers: it is given a seed per row, as the keyword `seeds` or `rngs`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub seeded: bool,
}

impl Function {
    /// A function of a module, `package.module:function`, with the usual bounds and no outputs.
    pub fn new(function: impl Into<String>) -> Self {
        Self {
            function: function.into(),
            code: None,
            path: Vec::new(),
            version: None,
            columns: Vec::new(),
            outputs: BTreeMap::new(),
            environment: None,
            timeout_s: default_timeout_s(),
            memory: default_memory(),
            rows: None,
            seeded: false,
        }
    }

    /// With a column that it adds or replaces.
    #[must_use]
    pub fn output(mut self, column: impl Into<String>, output: FunctionOutput) -> Self {
        self.outputs.insert(column.into(), output);
        self
    }

    /// Whether what it makes of a row may differ the next time: it draws, or its module may have changed.
    pub fn may_differ(&self) -> bool {
        self.seeded || (self.code.is_none() && self.version.is_none())
    }

    /// Itself without what says only how it is run: rows do not depend on that. A version stands for the code, of which the bytes may
    /// differ from process to process.
    pub(in crate::pipeline) fn of_rows(&self) -> Self {
        Self {
            code: self.code.clone().filter(|_| self.version.is_none()),
            path: Vec::new(),
            environment: None,
            timeout_s: default_timeout_s(),
            memory: default_memory(),
            rows: None,
            ..self.clone()
        }
    }
}

/// What a column that a function returns holds in each row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionOutput {
    /// Its elements: a number's type, `text` or `bytes`.
    pub dtype: ElementType,
    /// Extents of a row's tensor; a single element where it is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<u32>,
    /// Whether a row is a list of elements, of any length.
    #[serde(default, skip_serializing_if = "is_false")]
    pub list: bool,
}

impl FunctionOutput {
    /// One number per row, or a tensor of this shape.
    pub fn numbers(dtype: ScalarType, shape: impl Into<Vec<u32>>) -> Self {
        Self { dtype: ElementType::Number(dtype), shape: shape.into(), list: false }
    }

    /// One element per row.
    pub fn of(dtype: ElementType) -> Self {
        Self { dtype, shape: Vec::new(), list: false }
    }

    /// A list of elements per row.
    pub fn list(dtype: ElementType) -> Self {
        Self { dtype, shape: Vec::new(), list: true }
    }

    /// The column's type.
    pub fn column_type(&self) -> ColumnType {
        let element = match self.dtype {
            ElementType::Number(scalar) if !self.shape.is_empty() => {
                return ColumnType::Tensor { scalar, shape: self.shape.clone() };
            }
            ElementType::Number(scalar) => ColumnType::Scalar(scalar),
            ElementType::Text => ColumnType::Utf8,
            ElementType::Bytes => ColumnType::Binary,
        };
        if self.list { ColumnType::List(Box::new(element)) } else { element }
    }
}

/// What an element is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// A number or truth value.
    Number(ScalarType),
    /// UTF-8 text.
    Text,
    /// Bytes.
    Bytes,
}

impl ElementType {
    const NUMBERS: [ScalarType; 12] = [
        ScalarType::Bool,
        ScalarType::Int8,
        ScalarType::Int16,
        ScalarType::Int32,
        ScalarType::Int64,
        ScalarType::UInt8,
        ScalarType::UInt16,
        ScalarType::UInt32,
        ScalarType::UInt64,
        ScalarType::Float16,
        ScalarType::Float32,
        ScalarType::Float64,
    ];

    /// The name used in pipeline files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Number(scalar) => scalar.name(),
            Self::Text => "text",
            Self::Bytes => "bytes",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::NUMBERS.map(Self::Number).into_iter().chain([Self::Text, Self::Bytes]);
        all.find(|element| element.name() == name)
    }
}

impl Serialize for ElementType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for ElementType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| {
            let known: Vec<&str> = Self::NUMBERS.iter().map(|scalar| scalar.name()).collect();
            serde::de::Error::custom(format!(
                "`{name}` is no dtype; write {}, text or bytes",
                known.join(", ")
            ))
        })
    }
}

/// What a function was written for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionEnvironment {
    /// Version of Python as far as it matters, such as `3.11`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Package -> version as far as it matters: `2.4` stands for 2.4.6 too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, String>,
}

fn default_timeout_s() -> u32 {
    60
}

fn default_memory() -> u64 {
    1 << 30
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// Bytes as people write them.
mod size {
    use super::*;

    const UNITS: [(&str, u64); 7] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ];

    pub(super) fn parse(text: &str) -> Option<u64> {
        let (number, unit) =
            UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)))?;
        number.trim().parse::<u64>().ok()?.checked_mul(unit)
    }

    pub(super) fn serialize<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = UNITS[..4].iter().rev().find(|(_, unit)| *bytes > 0 && bytes.is_multiple_of(*unit));
        match whole {
            Some((name, unit)) => serializer.serialize_str(&format!("{}{name}", bytes / unit)),
            None => serializer.serialize_u64(*bytes),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        struct Size;

        impl serde::de::Visitor<'_> for Size {
            type Value = u64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes, such as 512MiB or 1GiB")
            }

            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<u64, E> {
                Ok(bytes)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
                parse(text).ok_or_else(|| {
                    E::custom(format!("`{text}` is no size; write one such as 512MiB or 1GiB"))
                })
            }
        }

        deserializer.deserialize_any(Size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [("1GiB", 1 << 30), ("512 MiB", 512 << 20), ("3MB", 3_000_000)] {
            assert_eq!(size::parse(text), Some(bytes), "{text}");
        }
        for wrong in ["", "GiB", "-1GiB", "1.5GiB", "99999999999TiB", "12"] {
            assert_eq!(size::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn outputs_have_the_type_that_they_declare() {
        let text = FunctionOutput::list(ElementType::Text);
        assert_eq!(text.column_type(), ColumnType::List(Box::new(ColumnType::Utf8)));
        let tensor = FunctionOutput::numbers(ScalarType::Float16, [2, 3]);
        let wanted = ColumnType::Tensor { scalar: ScalarType::Float16, shape: vec![2, 3] };
        assert_eq!(tensor.column_type(), wanted);
        let one = FunctionOutput::of(ElementType::Bytes);
        assert_eq!(one.column_type(), ColumnType::Binary);
    }

    #[test]
    fn rows_of_a_function_are_kept_only_where_its_code_is_known() {
        let plain = Function::new("m:f");
        let versioned = Function { version: Some("2".to_owned()), ..plain.clone() };
        let pickled = Function { code: Some("gA==".to_owned()), ..plain.clone() };
        let seeded = Function { seeded: true, ..pickled.clone() };
        let differ = [&plain, &versioned, &pickled, &seeded].map(Function::may_differ);
        assert_eq!(differ, [true, false, false, true]);
    }
}
