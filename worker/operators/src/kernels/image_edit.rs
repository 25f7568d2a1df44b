//! Edits images and image tensors in place.

use bytes::BytesMut;
use feedline_data::schema::ScalarType;

use crate::{Chunk, Column, OperatorError};

/// The image of one row.
pub(crate) struct ImageMut<'a> {
    /// The elements in native byte order.
    pub(crate) data: &'a mut [u8],
    /// The extents, such as height, width and channels.
    pub(crate) shape: [usize; 3],
    /// Element type.
    pub(crate) scalar: ScalarType,
}

/// Calls `edit` for the images of all rows for which `choose` returns a value. The column must contain images or tensors with three
/// axes. The image of a failed row may be empty.
///
/// # Errors
/// Returns an error if the column contains other values.
pub(crate) fn edit_images<T>(
    chunk: &mut Chunk,
    column: &str,
    choose: impl Fn(&Chunk, usize) -> Option<T>,
    edit: impl Fn(ImageMut<'_>, T),
) -> Result<(), OperatorError> {
    let column_index = chunk.column_index(column)?;
    let rows = (0..chunk.rows()).filter_map(|row| choose(chunk, row).map(|value| (row, value)));
    let chosen: Vec<(usize, T)> = rows.collect();
    match &mut chunk.columns[column_index].1 {
        Column::Images(images) => {
            for (row, value) in chosen {
                let image = &mut images[row];
                // This copies the image only if a cache or another chunk shares the buffer.
                let mut data = BytesMut::from(std::mem::take(&mut image.data));
                let shape = [image.height as usize, image.width as usize, 3];
                edit(ImageMut { data: &mut data, shape, scalar: ScalarType::UInt8 }, value);
                image.data = data.freeze();
            }
        }
        Column::Tensor(tensor) if tensor.shape.len() == 3 => {
            let shape = [0, 1, 2].map(|axis| tensor.shape[axis] as usize);
            let scalar = tensor.scalar;
            for (row, value) in chosen {
                edit(ImageMut { data: tensor.row_mut(row), shape, scalar }, value);
            }
        }
        other => {
            return Err(OperatorError::new(format!(
                "column `{column}` contains {}, but must contain images",
                other.describe()
            )));
        }
    }
    Ok(())
}
