//! Arrays in Fortran order: the elements of all rows at one position are contiguous.

use arrow::buffer::Buffer;
use feedline_data::manifest::Block;

use super::super::decompress::off_runtime;
use super::elements::in_c_order;
use super::header::NpyHeader;
use crate::error::SourceError;
use crate::object::Object;
use crate::reader::BlockRead;

/// Maximum size of an array that is read as one block.
const MAX_WHOLE_BYTES: u64 = 16 << 20;
/// Size of a range of a block of a larger array. Rows with many elements have smaller ranges.
const RANGE_BYTES: u64 = 128 << 10;
const MIN_RANGE_BYTES: u64 = 16 << 10;
/// Maximum size of a block of a larger array. Reading it needs twice as much memory.
const MAX_BLOCK_BYTES: u64 = 64 << 20;

/// Divides the rows of an array into blocks. The offset of a block is the number of its first row.
pub(super) fn blocks(header: &NpyHeader) -> Result<Vec<Block>, String> {
    let width = header.scalar.width_bytes() as u64;
    let array_bytes = header.rows * header.row_bytes;
    let rows_per_block = if array_bytes <= MAX_WHOLE_BYTES {
        header.rows
    } else {
        (MAX_BLOCK_BYTES / header.row_bytes).clamp(MIN_RANGE_BYTES / width, RANGE_BYTES / width)
    };
    if rows_per_block.min(header.rows) * header.row_bytes > MAX_BLOCK_BYTES {
        return Err(format!(
            "the array is in Fortran order and has {} elements per row, so that its rows cannot be read separately: save it with \
             `np.save(file, np.ascontiguousarray(array))`",
            header.row_elements()
        ));
    }
    let block = |first: u64| {
        let rows = rows_per_block.min(header.rows - first);
        Block {
            rows: rows as u32,
            offset: first,
            bytes: rows * header.row_bytes,
            group: 0,
            row_bytes: Vec::new(),
        }
    };
    Ok((0..header.rows).step_by(rows_per_block.max(1) as usize).map(block).collect())
}

/// Reads the rows of a block in C order.
pub(super) async fn read(
    object: &Object,
    read: &BlockRead<'_>,
    header: &NpyHeader,
) -> Result<Buffer, SourceError> {
    let (first, rows) = (read.block.offset, u64::from(read.block.rows));
    if read.rows.is_some() || first.checked_add(rows).is_none_or(|end| end > header.rows) {
        let reason = "the block is not in the array: run `feedline index --rebuild`";
        return Err(SourceError::corrupt(read.shard, header.data_start, reason));
    }
    let failed = |reason: String| SourceError::corrupt(read.shard, header.data_start, reason);
    let width = header.scalar.width_bytes() as u64;
    let part_bytes = (rows * width) as usize;
    if rows == header.rows {
        let all = object.read(header.data_start..header.data_start + rows * header.row_bytes).await?;
        let header = header.clone();
        let transpose = move || {
            let part = |element: usize| &all[element * part_bytes..(element + 1) * part_bytes];
            Buffer::from_vec(in_c_order(&header, rows as usize, part))
        };
        return off_runtime(read.block.bytes, transpose).await.map_err(failed);
    }
    let range = |element: u64| {
        let start = header.data_start + (element * header.rows + first) * width;
        start..start + rows * width
    };
    let ranges: Vec<_> = (0..header.row_elements()).map(range).collect();
    let (buffers, spans) = object.read_ranges(&ranges).await?;
    let header = header.clone();
    let transpose = move || {
        let part = |element: usize| {
            let span = spans[element];
            &buffers[span.buffer][span.start..span.start + span.len]
        };
        Buffer::from_vec(in_c_order(&header, rows as usize, part))
    };
    off_runtime(read.block.bytes, transpose).await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of an array of float32.
    fn of_array(rows: u64, elements: u64) -> Result<Vec<Block>, String> {
        let text = format!("{{'descr': '<f4', 'fortran_order': True, 'shape': ({rows}, {elements}), }}");
        let length = (text.len() as u16).to_le_bytes();
        let start = [b"\x93NUMPY\x01\0".as_slice(), &length, text.as_bytes()].concat();
        let size = start.len() as u64 + rows * elements * 4;
        blocks(&NpyHeader::parse(&start, size).map_err(|error| error.reason)?)
    }

    #[test]
    fn blocks_are_limited_in_memory() {
        assert_eq!(of_array(1_000, 1_000).unwrap().len(), 1, "a small array is read as a whole");
        for elements in [64, 1_024, 4_096] {
            let blocks = of_array(1_000_000, elements).unwrap();
            assert!(blocks.iter().all(|block| block.bytes <= MAX_BLOCK_BYTES), "{elements}");
            assert!(blocks[0].rows >= 4_096, "{elements}: {}", blocks[0].rows);
            assert_eq!(blocks.iter().map(|block| u64::from(block.rows)).sum::<u64>(), 1_000_000);
        }
        assert!(of_array(1_000_000, 8_192).unwrap_err().contains("np.ascontiguousarray"));
    }
}
