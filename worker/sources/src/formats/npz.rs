//! NumPy `.npz` files: a zip archive with one array per member. Each index of the first axis is one row, and each array is
//! one column.
//!
//! Rows of stored arrays in C order are read separately. Otherwise, the file is a single block.

pub(crate) mod local_archive;
mod zip;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::Buffer;
use async_trait::async_trait;
use feedline_data::manifest::{Block, ShardIndex};

use super::decompress::{MAX_DECOMPRESSED_BYTES, off_runtime};
use super::npy::elements::{column, in_c_order};
use super::npy::header::NpyHeader;
use crate::blocks::MAX_BLOCK_ROWS;
use crate::cache::{CachedSize, ShardCache, ShardCacheMemory};
use crate::columns::{arrow_type, build_batch, null_column};
use crate::error::SourceError;
use crate::exact_cast::{cast_exact, merge_failures, row_failures};
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::select::{InferenceNotes, Selection};

use zip::ZipMember;

/// Target size of a block.
const TARGET_BLOCK_BYTES: u64 = 1 << 20;
/// Maximum number of members of an archive whose starts are read together.
const MAX_BATCH_MEMBERS: usize = 64;

/// Reads archives of NumPy arrays.
pub(super) struct NpzReader {
    archives: ShardCache<Archive>,
}

impl NpzReader {
    pub(super) fn new(memory: &ShardCacheMemory) -> Self {
        Self { archives: ShardCache::new(memory) }
    }
}

/// The arrays of an archive.
struct Archive {
    arrays: Vec<NpzArray>,
}

/// A member of an archive.
struct NpzArray {
    name: String,
    member: ZipMember,
    /// The header, or the reason why the array cannot be read.
    header: Result<NpyHeader, String>,
}

#[async_trait]
impl FormatReader for NpzReader {
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard();
        let archive = self.archives.get(object, || read_archive(object, selection)).await?;
        let found: Vec<_> = archive
            .arrays
            .iter()
            .map(|array| {
                let column_type = array.header.as_ref().map(|header| header.column_type.clone());
                (array.name.clone(), column_type.map_err(Clone::clone))
            })
            .collect();
        let (schema, columns) = selection.resolve_fixed(shard, &found, &InferenceNotes::default())?;
        let names = selection.data_names(&schema);
        let mut arrays: Vec<_> = names.iter().filter_map(|name| archive.find(name)).collect();
        if arrays.is_empty() {
            // The number of rows is that of the other arrays.
            arrays.extend(archive.arrays.iter().filter_map(|array| archive.find(&array.name)));
        }
        let blocks = blocks(&arrays).map_err(|reason| SourceError::unsupported(shard, reason))?;
        let schema = (!blocks.is_empty()).then_some(schema);
        Ok(ShardIndex { blocks, schema, columns, ..ShardIndex::default() })
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let archive = self.archives.get(object, || read_archive(object, selection)).await?;
        let rows = read.block.rows as usize;
        let mut held_bytes = 0;
        let mut columns: Vec<ArrayRef> = Vec::new();
        let mut failures = Vec::new();
        for (field, name) in read.schema.fields.iter().zip(selection.data_names(read.schema)) {
            let Some((array, header)) = archive.find(name) else {
                columns.push(null_column(&field.column_type, rows));
                continue;
            };
            let bytes = array.read_rows(object, read, header).await?;
            held_bytes += bytes.len();
            let built = column(header, bytes);
            let cast = built.and_then(|values| cast_exact(&values, &arrow_type(&field.column_type)));
            let (values, inexact) =
                cast.map_err(|reason| SourceError::corrupt(read.shard, array.member.start, reason))?;
            failures.extend(row_failures(name, inexact, |_| array.member.start));
            columns.push(values);
        }
        let batch = build_batch(read.schema, columns, rows);
        let batch = batch.map_err(|reason| SourceError::corrupt(read.shard, 0, reason))?;
        merge_failures(&mut failures);
        Ok(DecodedBlock { batch, failures, held_bytes })
    }
}

impl CachedSize for Archive {
    fn held_bytes(&self) -> usize {
        self.arrays.iter().map(|array| size_of::<NpzArray>() + array.name.len()).sum()
    }
}

impl Archive {
    fn find(&self, name: &str) -> Option<(&NpzArray, &NpyHeader)> {
        let array = self.arrays.iter().find(|array| array.name == name)?;
        Some((array, array.header.as_ref().ok()?))
    }
}

impl NpzArray {
    /// Whether a range of rows can be read without the rest of the array.
    fn has_separate_rows(&self, header: &NpyHeader) -> bool {
        !self.member.is_deflated && !header.is_fortran
    }

    /// Reads the rows of a block in C order.
    async fn read_rows(
        &self,
        object: &Object,
        read: &BlockRead<'_>,
        header: &NpyHeader,
    ) -> Result<Buffer, SourceError> {
        let corrupt = |reason: &str| SourceError::corrupt(read.shard, self.member.start, reason);
        let (first, rows) = (read.block.offset, u64::from(read.block.rows));
        if read.rows.is_some() || first.checked_add(rows).is_none_or(|end| end > header.rows) {
            return Err(corrupt("the block is not in the archive: run `feedline index --rebuild`"));
        }
        if self.has_separate_rows(header) && rows < header.rows {
            let start = self.member.start + header.data_start + first * header.row_bytes;
            return Ok(Buffer::from(object.read(start..start + rows * header.row_bytes).await?));
        }
        let member = self.member.read(object).await?;
        let array = member.slice(header.data_start as usize..);
        if !header.is_fortran {
            let rows = first * header.row_bytes..(first + rows) * header.row_bytes;
            return Ok(Buffer::from(array.slice(rows.start as usize..rows.end as usize)));
        }
        if rows != header.rows {
            return Err(corrupt("the block is not the whole array: run `feedline index --rebuild`"));
        }
        let (header, bytes) = (header.clone(), array.len() as u64);
        let transpose = move || {
            let part_bytes = rows as usize * header.scalar.width_bytes();
            let part = |element: usize| &array[element * part_bytes..(element + 1) * part_bytes];
            Buffer::from_vec(in_c_order(&header, rows as usize, part))
        };
        off_runtime(bytes, transpose).await.map_err(|reason| corrupt(&reason))
    }
}

/// Divides the rows of the arrays into blocks. The offset of a block is the number of its first row.
fn blocks(arrays: &[(&NpzArray, &NpyHeader)]) -> Result<Vec<Block>, String> {
    let Some((first, first_header)) = arrays.first() else { return Ok(Vec::new()) };
    let rows = first_header.rows;
    if let Some((other, header)) = arrays.iter().find(|(_, header)| header.rows != rows) {
        return Err(format!(
            "the array `{}` has {} rows, but the array `{}` has {rows}: list arrays with the same first axis under `source.features`",
            other.name, header.rows, first.name
        ));
    }
    let row_bytes = arrays.iter().map(|(_, header)| header.row_bytes).fold(0, u64::saturating_add);
    let rows_per_block = if arrays.iter().all(|(array, header)| array.has_separate_rows(header)) {
        (TARGET_BLOCK_BYTES / row_bytes.max(1)).clamp(1, MAX_BLOCK_ROWS as u64)
    } else {
        rows.max(1)
    };
    let block_bytes = rows_per_block.min(rows).saturating_mul(row_bytes);
    if block_bytes > MAX_DECOMPRESSED_BYTES || rows_per_block.min(rows) > u64::from(u32::MAX) {
        return Err(format!(
            "its arrays are compressed or in Fortran order and have {block_bytes} bytes; the limit is {MAX_DECOMPRESSED_BYTES} bytes: \
             save them with `np.savez` and `np.ascontiguousarray`"
        ));
    }
    let block = |first: u64| {
        let rows = rows_per_block.min(rows - first);
        Block { rows: rows as u32, offset: first, bytes: rows * row_bytes, group: 0, row_bytes: Vec::new() }
    };
    Ok((0..rows).step_by(rows_per_block as usize).map(block).collect())
}

/// Reads the headers of the selected arrays.
async fn read_archive(object: &Arc<Object>, selection: &Selection) -> Result<Archive, SourceError> {
    let is_selected = |name: &str| selection.reads(name);
    let (mut arrays, mut selected, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for entry in zip::entries(object).await? {
        let Some(name) = entry.name.strip_suffix(".npy").map(str::to_owned) else { continue };
        let entries = if is_selected(&name) { &mut selected } else { &mut others };
        entries.push((arrays.len(), entry));
        let header = Err("the array is not selected".to_owned());
        arrays.push(NpzArray { name, member: ZipMember::default(), header });
    }
    if arrays.is_empty() {
        let reason = "the archive has no arrays: write it with `np.savez`";
        return Err(SourceError::unsupported(object.shard(), reason));
    }
    if selected.is_empty() {
        // The other arrays have the number of rows.
        selected = others;
    }
    selected.sort_by_key(|(_, entry)| entry.header);
    for batch in selected.chunks(MAX_BATCH_MEMBERS) {
        let entries: Vec<&zip::Entry> = batch.iter().map(|(_, entry)| entry).collect();
        let members = zip::members(object, &entries).await?;
        for ((place, _), (member, start)) in batch.iter().zip(members) {
            arrays[*place].header = NpyHeader::parse(&start, member.size).map_err(|error| error.reason);
            arrays[*place].member = member;
        }
    }
    Ok(Archive { arrays })
}

#[cfg(test)]
mod tests;
