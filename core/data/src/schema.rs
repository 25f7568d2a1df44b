//! Column types and schemas of a pipeline, independent of Arrow.

use serde::{Deserialize, Serialize};

use crate::shared_vec::SharedVec;

/// Maximum number of columns in a dataset, in a batch, and in a column list of a pipeline.
pub const MAX_COLUMNS: usize = 4_096;

/// The element type of a scalar, list or tensor column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum ScalarType {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    Float32,
    Float64,
}

impl ScalarType {
    /// All element types.
    pub const ALL: [Self; 12] = [
        Self::Bool,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::UInt8,
        Self::UInt16,
        Self::UInt32,
        Self::UInt64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
    ];

    /// The size of one element in a tensor, in bytes.
    pub fn width_bytes(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 | Self::Float16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float32 => 4,
            Self::Int64 | Self::UInt64 | Self::Float64 => 8,
        }
    }

    /// The name used in pipeline files and messages, such as `float32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt8 => "uint8",
            Self::UInt16 => "uint16",
            Self::UInt32 => "uint32",
            Self::UInt64 => "uint64",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }
}

/// The type of one column.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnType {
    /// One number or boolean per row.
    Scalar(ScalarType),
    /// UTF-8 text.
    Utf8,
    /// Bytes, such as encoded images and serialized records.
    Binary,
    /// A list of variable length per row.
    List(Box<ColumnType>),
    /// A decoded image of variable size per row: `uint8`, height x width x 3.
    Image,
    /// A tensor of fixed shape per row, in row-major order.
    Tensor {
        /// Element type.
        scalar: ScalarType,
        /// The extent of each dimension, without the batch dimension.
        shape: Vec<u32>,
    },
}

impl ColumnType {
    /// Returns the size of one row in bytes, or `None` if rows have different sizes.
    pub fn fixed_row_bytes(&self) -> Option<usize> {
        match self {
            Self::Scalar(scalar) => Some(scalar.width_bytes()),
            Self::Tensor { scalar, shape } => {
                Some(scalar.width_bytes() * shape.iter().map(|&extent| extent as usize).product::<usize>())
            }
            Self::Utf8 | Self::Binary | Self::List(_) | Self::Image => None,
        }
    }
}

impl std::fmt::Display for ColumnType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scalar(scalar) => f.write_str(scalar.name()),
            Self::Utf8 => f.write_str("text"),
            Self::Binary => f.write_str("bytes"),
            Self::List(inner) => write!(f, "list of {inner}"),
            Self::Image => f.write_str("image"),
            Self::Tensor { scalar, shape } => write!(f, "{} tensor {shape:?}", scalar.name()),
        }
    }
}

/// A named column.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Field {
    /// Column name.
    pub name: String,
    /// Column type.
    #[serde(rename = "type")]
    pub column_type: ColumnType,
}

/// The columns of a source or of an operator's output, in order. Column names are unique.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schema {
    /// The columns.
    pub fields: SharedVec<Field>,
}

impl Schema {
    /// Creates a schema with the given columns.
    pub fn new(fields: impl IntoIterator<Item = (impl Into<String>, ColumnType)>) -> Self {
        let fields =
            fields.into_iter().map(|(name, column_type)| Field { name: name.into(), column_type }).collect();
        Self { fields }
    }

    /// The type of the named column.
    pub fn get(&self, name: &str) -> Option<&ColumnType> {
        self.fields.iter().find(|field| field.name == name).map(|field| &field.column_type)
    }

    /// The index of the named column.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }

    /// Column names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| field.name.as_str())
    }

    /// Replaces the named column's type, or appends the column.
    pub fn set(&mut self, name: &str, column_type: ColumnType) {
        match self.index_of(name) {
            Some(index) => self.fields[index].column_type = column_type,
            None => self.fields.push(Field { name: name.to_owned(), column_type }),
        }
    }
}
