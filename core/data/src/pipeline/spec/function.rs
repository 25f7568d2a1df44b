//! The parameters of `map` and `filter_function`: a Python function with its input columns, output columns and limits.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::schema::{ColumnType, ScalarType};

/// Parameters of `map` and of `filter_function`. The function receives a dict with one NumPy array per column. The first
/// axis of each array is the row. A `map` function returns a dict of the same form with the same number of rows. A
/// `filter_function` function returns one Boolean per row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// The function to import, as `package.module:function`. With `code`, only a name for messages.
    pub function: String,
    /// The function as pickled by cloudpickle, in base64. Replaces the import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Directories on the workers that Python searches first for modules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<String>,
    /// Identifies the state of the module. Rows after an imported function are cached only if a version is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The columns that the function receives. If empty, the function receives all columns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// The columns that `map` adds or replaces. Empty for `filter_function`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, FunctionOutput>,
    /// The versions of Python and of packages that the function needs. A worker with different versions rejects the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<FunctionEnvironment>,
    /// Timeout of one call in seconds.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u32,
    /// Memory limit of one function process in bytes. Pipeline files may use units, such as `512MiB`.
    #[serde(default = "default_memory", with = "size")]
    pub memory: u64,
    /// Maximum number of rows per call; `None` passes whole chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u32>,
    /// Whether the function draws random numbers. A seeded function receives a seed per row in its keyword argument `seeds`
    /// or `rngs`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub seeded: bool,
}

impl Function {
    /// Creates an imported function, named `package.module:function`, with default limits and without outputs.
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

    /// Declares a column that the function adds or replaces.
    #[must_use]
    pub fn output(mut self, column: impl Into<String>, output: FunctionOutput) -> Self {
        self.outputs.insert(column.into(), output);
        self
    }

    /// Whether repeated calls may return different values for a row, because the function is random or its module may
    /// change.
    pub fn is_nondeterministic(&self) -> bool {
        self.seeded || (self.code.is_none() && self.version.is_none())
    }

    /// Returns a copy without the fields that do not affect rows. The code is also removed if a version identifies it,
    /// because pickled bytes may differ between processes.
    pub(in crate::pipeline) fn without_execution_settings(&self) -> Self {
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

/// The type of a column that a function returns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionOutput {
    /// The element type: a number type, `text` or `bytes`.
    pub dtype: ElementType,
    /// The shape of the tensor in each row. If empty, each row contains one element.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<u32>,
    /// Whether each row contains a list of elements of any length.
    #[serde(default, skip_serializing_if = "is_false")]
    pub list: bool,
}

impl FunctionOutput {
    /// Declares one tensor of this shape per row, or one number if the shape is empty.
    pub fn numbers(dtype: ScalarType, shape: impl Into<Vec<u32>>) -> Self {
        Self { dtype: ElementType::Number(dtype), shape: shape.into(), list: false }
    }

    /// Declares one element per row.
    pub fn element(dtype: ElementType) -> Self {
        Self { dtype, shape: Vec::new(), list: false }
    }

    /// Declares one list of elements per row.
    pub fn list(dtype: ElementType) -> Self {
        Self { dtype, shape: Vec::new(), list: true }
    }

    /// The type of the column.
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

/// The element type of a column that a function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// A number or boolean.
    Number(ScalarType),
    /// UTF-8 text.
    Text,
    /// Bytes.
    Bytes,
}

impl ElementType {
    /// The name used in pipeline files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Number(scalar) => scalar.name(),
            Self::Text => "text",
            Self::Bytes => "bytes",
        }
    }

    /// Returns the element type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = ScalarType::ALL.map(Self::Number).into_iter().chain([Self::Text, Self::Bytes]);
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
        Self::from_name(&name).ok_or_else(|| {
            let known: Vec<&str> = ScalarType::ALL.iter().map(|scalar| scalar.name()).collect();
            serde::de::Error::custom(format!(
                "invalid dtype `{name}`: expected {}, text or bytes",
                known.join(", ")
            ))
        })
    }
}

/// The versions of Python and of packages that a function needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionEnvironment {
    /// The version of Python, such as `3.11`, which matches every patch release of 3.11.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Maps each package to its version. `2.4` also matches 2.4.6.
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

/// Serde form of byte counts with units, such as `512MiB`.
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
        struct SizeVisitor;

        impl serde::de::Visitor<'_> for SizeVisitor {
            type Value = u64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size in bytes, such as 512MiB or 1GiB")
            }

            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<u64, E> {
                Ok(bytes)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
                parse(text).ok_or_else(|| {
                    E::custom(format!(
                        "invalid size `{text}`: expected a number with a unit, such as 512MiB or 1GiB"
                    ))
                })
            }
        }

        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_their_units() {
        for (text, bytes) in [("1GiB", 1 << 30), ("512 MiB", 512 << 20), ("3MB", 3_000_000)] {
            assert_eq!(size::parse(text), Some(bytes), "{text}");
        }
        for wrong in ["", "GiB", "-1GiB", "1.5GiB", "99999999999TiB", "12"] {
            assert_eq!(size::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn output_declarations_determine_the_column_type() {
        let text = FunctionOutput::list(ElementType::Text);
        assert_eq!(text.column_type(), ColumnType::List(Box::new(ColumnType::Utf8)));
        let tensor = FunctionOutput::numbers(ScalarType::Float16, [2, 3]);
        let wanted = ColumnType::Tensor { scalar: ScalarType::Float16, shape: vec![2, 3] };
        assert_eq!(tensor.column_type(), wanted);
        let one = FunctionOutput::element(ElementType::Bytes);
        assert_eq!(one.column_type(), ColumnType::Binary);
    }

    #[test]
    fn a_function_is_deterministic_only_with_code_or_version_and_without_seeds() {
        let plain = Function::new("m:f");
        let versioned = Function { version: Some("2".to_owned()), ..plain.clone() };
        let pickled = Function { code: Some("gA==".to_owned()), ..plain.clone() };
        let seeded = Function { seeded: true, ..pickled.clone() };
        let differ = [&plain, &versioned, &pickled, &seeded].map(Function::is_nondeterministic);
        assert_eq!(differ, [true, false, false, true]);
    }
}
