//! Writes the input columns of a function to the shared region as plain buffers, and describes their locations.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, UInt8Type};
use feedline_data::schema::{ColumnType, ScalarType};
use feedline_operators::{Column, Image, SourceTensors, arrow_scalar};
use serde_json::{Value, json};

use crate::outputs::numpy_name;
use crate::region::SharedRegion;

/// Writes a column and returns its location. Adds rows with a null that NumPy cannot represent to `failed`.
pub(crate) fn write_column(
    (name, column_type): (&str, &ColumnType),
    column: &Column,
    region: &mut SharedRegion,
    failed: &mut Vec<(usize, String)>,
) -> Result<Value, String> {
    let mut writer = ColumnWriter { name, region };
    match (column, column_type) {
        (Column::Tensor(tensor), _) => {
            let bytes = tensor.rows * tensor.row_bytes();
            writer.write_numbers(&tensor.data[..bytes], tensor.scalar, &tensor.shape)
        }
        (Column::Images(images), _) => writer.write_images(images),
        (Column::Arrow(array), column_type) => {
            // A row has a failure for each null element.
            let mut fail = |row, reason| {
                if failed.last().is_none_or(|(last, _)| *last != row) {
                    failed.push((row, reason));
                }
            };
            writer.write_array(array, column_type, &mut fail)
        }
    }
}

/// Writes one seed per row.
pub(crate) fn write_seeds(seeds: &[u64], region: &mut SharedRegion) -> Result<Value, String> {
    let bytes: Vec<u8> = seeds.iter().flat_map(|seed| seed.to_ne_bytes()).collect();
    ColumnWriter { name: "seeds", region }.write_numbers(&bytes, ScalarType::UInt64, &[])
}

struct ColumnWriter<'a> {
    name: &'a str,
    region: &'a mut SharedRegion,
}

impl ColumnWriter<'_> {
    fn write_bytes(&mut self, bytes: &[u8]) -> Result<u64, String> {
        self.region.push(bytes).map_err(|error| {
            format!(
                "cannot allocate shared memory for column `{}`: {error}; lower `rows` or the worker's --memory",
                self.name
            )
        })
    }

    fn write_numbers(&mut self, bytes: &[u8], scalar: ScalarType, shape: &[u32]) -> Result<Value, String> {
        let at = self.write_bytes(bytes)?;
        Ok(json!({"kind": "number", "dtype": numpy_name(scalar), "shape": shape, "at": at}))
    }

    fn write_offsets(&mut self, lengths: impl Iterator<Item = usize>) -> Result<u64, String> {
        let mut end = 0_i64;
        let ends = lengths.map(|length| {
            end += length as i64;
            end
        });
        let all: Vec<u8> = std::iter::once(0).chain(ends).flat_map(i64::to_ne_bytes).collect();
        self.write_bytes(&all)
    }

    fn write_images(mut self, images: &[Image]) -> Result<Value, String> {
        let sizes = images.iter().flat_map(|image| [image.height, image.width]);
        let sizes: Vec<u8> = sizes.flat_map(u32::to_ne_bytes).collect();
        let sizes = self.write_bytes(&sizes)?;
        let offsets = self.write_offsets(images.iter().map(|image| image.data.len()))?;
        let data = images.iter().map(|image| &*image.data).collect::<Vec<_>>().concat();
        let data = self.write_bytes(&data)?;
        Ok(json!({"kind": "image", "sizes": sizes, "offsets": offsets, "data": data}))
    }

    /// Writes tensors of the source, or of the lists of a column.
    fn write_tensors(
        &mut self,
        array: &ArrayRef,
        (scalar, shape): (ScalarType, &[u32]),
        fail: &mut dyn FnMut(usize, String),
    ) -> Result<Value, String> {
        let tensors =
            SourceTensors::new(array, (scalar, shape), self.name).map_err(|error| error.to_string())?;
        let bytes = tensors.bytes();
        let Some(nulls) = tensors.element_nulls() else {
            return self.write_numbers(&bytes, scalar, shape);
        };
        let mut bytes = bytes.to_vec();
        let elements = tensors.elements_per_row();
        let mut fail_row = |element: usize, reason: String| fail(element / elements, reason);
        let fix = "remove these rows with a filter or `on_error: skip`";
        self.replace_nulls(&nulls, scalar, &mut bytes, (&mut fail_row, fix));
        self.write_numbers(&bytes, scalar, shape)
    }

    /// Returns the elements in NumPy's representation, with zeros for nulls.
    fn number_bytes(&self, array: &ArrayRef, scalar: ScalarType) -> Result<Vec<u8>, String> {
        let wanted = if scalar == ScalarType::Bool { DataType::UInt8 } else { arrow_scalar(scalar) };
        let array = arrow::compute::cast(array, &wanted)
            .map_err(|error| format!("cannot convert column `{}` to {wanted}: {error}", self.name))?;
        if scalar == ScalarType::Bool {
            return Ok(array.as_primitive::<UInt8Type>().values().to_vec());
        }
        let (data, width) = (array.to_data(), scalar.width_bytes());
        Ok(data.buffers()[0].as_slice()[data.offset() * width..(data.offset() + data.len()) * width].to_vec())
    }

    fn write_array(
        &mut self,
        array: &ArrayRef,
        column_type: &ColumnType,
        fail: &mut dyn FnMut(usize, String),
    ) -> Result<Value, String> {
        match column_type {
            ColumnType::Scalar(scalar) => {
                let mut bytes = self.number_bytes(array, *scalar)?;
                if let Some(nulls) = array.nulls() {
                    let fix = "cast the column to float32, or remove these rows with a filter";
                    self.replace_nulls(nulls, *scalar, &mut bytes, (fail, fix));
                }
                let at = self.write_bytes(&bytes)?;
                Ok(json!({"kind": "number", "dtype": numpy_name(*scalar), "shape": [], "at": at}))
            }
            ColumnType::Utf8 | ColumnType::Binary => self.write_texts(array, column_type),
            ColumnType::List(items) => self.write_lists(array, items, fail),
            ColumnType::Tensor { scalar, shape } => self.write_tensors(array, (*scalar, shape), fail),
            ColumnType::Image => {
                Err(format!("column `{}` contains {} instead of {column_type}", self.name, array.data_type()))
            }
        }
    }

    /// Replaces nulls with NaN in floating-point columns. In other columns, `fail` receives each null, and `fix` is the end of
    /// the error message.
    fn replace_nulls(
        &self,
        nulls: &NullBuffer,
        scalar: ScalarType,
        bytes: &mut [u8],
        (fail, fix): (&mut dyn FnMut(usize, String), &str),
    ) {
        for element in (0..nulls.len()).filter(|&element| nulls.is_null(element)) {
            let offset = element * scalar.width_bytes();
            match scalar {
                ScalarType::Float32 => bytes[offset..offset + 4].copy_from_slice(&f32::NAN.to_ne_bytes()),
                ScalarType::Float64 => bytes[offset..offset + 8].copy_from_slice(&f64::NAN.to_ne_bytes()),
                ScalarType::Float16 => bytes[offset..offset + 2].copy_from_slice(&0x7e00_u16.to_ne_bytes()),
                other => fail(
                    element,
                    format!("column `{}` is null, which {} cannot represent; {fix}", self.name, other.name()),
                ),
            }
        }
    }

    fn write_texts(&mut self, array: &ArrayRef, column_type: &ColumnType) -> Result<Value, String> {
        let wanted = if *column_type == ColumnType::Utf8 { DataType::Utf8View } else { DataType::BinaryView };
        let array = arrow::compute::cast(array, &wanted)
            .map_err(|error| format!("column `{}` is not {column_type}: {error}", self.name))?;
        let row = |row: usize| -> &[u8] {
            match array.data_type() {
                _ if array.is_null(row) => &[],
                DataType::Utf8View => array.as_string_view().value(row).as_bytes(),
                _ => array.as_binary_view().value(row),
            }
        };
        let rows: Vec<&[u8]> = (0..array.len()).map(row).collect();
        let offsets = self.write_offsets(rows.iter().map(|row| row.len()))?;
        let data = self.write_bytes(&rows.concat())?;
        let valid = self.write_validity(&array)?;
        let kind = if *column_type == ColumnType::Utf8 { "text" } else { "bytes" };
        Ok(json!({"kind": kind, "offsets": offsets, "data": data, "valid": valid}))
    }

    /// Writes one byte per row, which is 0 for null. Returns `None` if no row is null.
    fn write_validity(&mut self, array: &ArrayRef) -> Result<Option<u64>, String> {
        if array.null_count() == 0 {
            return Ok(None);
        }
        let bytes: Vec<u8> = (0..array.len()).map(|row| u8::from(array.is_valid(row))).collect();
        self.write_bytes(&bytes).map(Some)
    }

    fn write_lists(
        &mut self,
        array: &ArrayRef,
        items: &ColumnType,
        fail: &mut dyn FnMut(usize, String),
    ) -> Result<Value, String> {
        let lists = match array.data_type() {
            DataType::List(_) => array.clone(),
            DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
                arrow::compute::cast(array, &DataType::new_list(element.data_type().clone(), true))
                    .map_err(|error| format!("cannot convert column `{}` to a list: {error}", self.name))?
            }
            other => return Err(format!("column `{}` contains {other} instead of lists", self.name)),
        };
        let lists = lists.as_list::<i32>();
        let bounds = lists.value_offsets();
        let (first, last) = (bounds[0] as usize, bounds[lists.len()] as usize);
        let values = lists.values().slice(first, last - first);
        let starts = bounds.iter().map(|bound| *bound as usize - first).collect::<Vec<_>>();
        // A null element fails its row, unless the whole list is null.
        let mut fail_row = |element: usize, reason: String| {
            let row = starts.partition_point(|start| *start <= element) - 1;
            if lists.is_valid(row) {
                fail(row, reason);
            }
        };
        let offsets = self.write_offsets(starts.windows(2).map(|pair| pair[1] - pair[0]))?;
        let items = self.write_array(&values, items, &mut fail_row)?;
        let valid = self.write_validity(array)?;
        Ok(json!({"kind": "list", "offsets": offsets, "items": items, "valid": valid}))
    }
}
