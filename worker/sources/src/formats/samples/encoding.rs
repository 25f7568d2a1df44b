//! The encodings of values in samples.

use feedline_data::schema::{ColumnType, ScalarType};

use super::arrays::ArrayEncoding;

/// How a value is stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ValueEncoding {
    /// Bytes, such as an encoded image.
    Bytes,
    /// UTF-8 text.
    Text,
    /// A little-endian number, or a boolean of one byte.
    Number(ScalarType),
    /// An integer in decimal digits.
    IntText,
    /// A floating-point number in decimal digits.
    FloatText,
    Array(ArrayEncoding),
    /// A raw image of Pillow, which becomes a PNG file.
    Pil,
    /// Several images. `header` is the number of bytes before the number of images.
    Images {
        header: usize,
        is_raw: bool,
    },
    /// A nested value of LitData, which becomes JSON text.
    Nested,
}

impl ValueEncoding {
    /// Returns the column type. `sample` is the value of the first sample, which determines the axes of an array.
    pub(crate) fn column_type(&self, sample: &[u8]) -> Result<ColumnType, String> {
        Ok(match self {
            Self::Bytes | Self::Pil => ColumnType::Binary,
            Self::Text | Self::Nested => ColumnType::Utf8,
            Self::Number(scalar) => ColumnType::Scalar(*scalar),
            Self::IntText => ColumnType::Scalar(ScalarType::Int64),
            Self::FloatText => ColumnType::Scalar(ScalarType::Float64),
            Self::Array(array) => array.column_type(sample)?,
            Self::Images { .. } => ColumnType::List(Box::new(ColumnType::Binary)),
        })
    }

    /// Whether the column type depends on the data.
    pub(crate) fn needs_sample(&self) -> bool {
        match self {
            Self::Array(array) => array.column_type(&[]).is_err(),
            _ => false,
        }
    }
}
