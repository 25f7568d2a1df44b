//! A dataset's manifest: its shards, their rows and block boundaries. Built once by workers, saved, reused.

use serde::{Deserialize, Serialize};

use crate::schema::MAX_COLUMNS;
use crate::schema::{ColumnType, ScalarType, Schema};

/// One object of a store as it was listed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardRef {
    /// Absolute URL, such as `file:///data/train-00000.tfrecord` or `s3://bucket/train-00000.tfrecord`.
    pub url: String,
    /// Object size in bytes.
    pub size_bytes: u64,
    /// What changes when the object changes: the store's entity tag, else its modification time.
    pub version: String,
    /// Which dataset of a mix it belongs to; 0 where there is one.
    #[serde(default)]
    pub part: u32,
}

/// A fixed row range of one shard: the smallest unit of reading and caching.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Rows in the block; at least 1.
    pub rows: u32,
    /// First byte of the block in the shard. For columnar formats, the first row of the block in its row group.
    pub offset: u64,
    /// Encoded bytes of the block, used for sizing and admission as well as for reading.
    pub bytes: u64,
    /// Row group (Parquet) or record batch (Arrow) that holds the block; 0 elsewhere.
    pub group: u32,
    /// Encoded bytes of each row, kept where rows are large enough to be worth reading one by one; else empty.
    /// The rows lie back to back from `offset`.
    pub row_bytes: Vec<u32>,
}

/// A place in a shard that could not be read while indexing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defect {
    /// Byte offset in the shard.
    pub offset: u64,
    /// What is wrong there, in one clause.
    pub reason: String,
}

/// What indexing one shard found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardIndex {
    /// Blocks in storage order.
    pub blocks: Vec<Block>,
    /// Columns of the shard's rows. Every shard of a dataset must agree; a shard without rows yields `None`.
    pub schema: Option<Schema>,
    /// Defects found, such as a truncated last record. Under `on_error: fail` any defect fails the job.
    pub defects: Vec<Defect>,
}

impl ShardIndex {
    /// Rows of the shard.
    pub fn rows(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.rows)).sum()
    }
}

/// One shard with its index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The object.
    pub object: ShardRef,
    /// Its rows and blocks.
    pub index: ShardIndex,
}

impl Shard {
    /// Bytes that no row comes from because of a defect: indexing stops at the first one, so these are the rest of the
    /// shard from its last readable row on.
    pub fn left_out_bytes(&self) -> u64 {
        if self.index.defects.is_empty() {
            return 0;
        }
        let read = self.index.blocks.last().map_or(0, |block| block.offset.saturating_add(block.bytes));
        self.object.size_bytes.saturating_sub(read)
    }
}

/// A dataset: its shards in listing order. A row's id is its place in this order, counted from 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Columns of every row.
    pub schema: Schema,
    /// Shards in listing order.
    pub shards: Vec<Shard>,
}

/// What a job's layout and checks need to know of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetSummary {
    /// Identifies the data by shard names, sizes and rows, wherever they lie: see [`Manifest::fingerprint`].
    pub fingerprint: String,
    /// Rows.
    pub rows: u64,
    /// Encoded bytes of all rows.
    pub bytes: u64,
    /// Shards.
    pub shards: u64,
    /// Blocks.
    pub blocks: u64,
    /// Columns of every row.
    pub schema: Schema,
    /// Defects that indexing found, over all shards.
    pub defects: u64,
    /// Rows of each dataset of a mix; empty where there is one dataset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part_rows: Vec<u64>,
}

impl Manifest {
    /// Puts indexed shards together.
    ///
    /// # Errors
    /// One sentence that names the shard whose columns do not go with the first shard's.
    pub fn build(shards: Vec<Shard>) -> Result<Self, String> {
        let mut merged: Option<(&Shard, Schema)> = None;
        for shard in &shards {
            let Some(schema) = &shard.index.schema else { continue };
            match &mut merged {
                None => merged = Some((shard, schema.clone())),
                Some((first, known)) => merge_schema(known, schema, shard, first)?,
            }
        }
        let schema = match merged {
            Some((_, schema)) => schema,
            None if shards.is_empty() => return Err("the dataset has no shards".to_owned()),
            None => {
                return Err(format!(
                    "the dataset has no rows: {} and the {} other shards are empty; check the source's url",
                    shards[0].object.url,
                    shards.len() - 1
                ));
            }
        };
        Ok(Self { schema, shards })
    }

    /// Identifies the data by each shard's file name, size and rows: the same after a copy to another place.
    pub fn fingerprint(&self) -> String {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        for shard in &self.shards {
            let name = shard.object.url.rsplit('/').next().unwrap_or_default();
            hash.update(name.as_bytes());
            hash.update(&shard.object.size_bytes.to_le_bytes());
            hash.update(&shard.index.rows().to_le_bytes());
        }
        format!("{:016x}", hash.digest())
    }

    /// Defects with their shards, in listing order.
    pub fn defects(&self) -> impl Iterator<Item = (&Shard, &Defect)> {
        self.shards.iter().flat_map(|shard| shard.index.defects.iter().map(move |defect| (shard, defect)))
    }

    /// The summary that a job keeps.
    pub fn summary(&self) -> DatasetSummary {
        let blocks = || self.shards.iter().flat_map(|shard| &shard.index.blocks);
        DatasetSummary {
            fingerprint: self.fingerprint(),
            rows: blocks().map(|block| u64::from(block.rows)).sum(),
            bytes: blocks().map(|block| block.bytes).fold(0, u64::saturating_add),
            shards: self.shards.len() as u64,
            blocks: blocks().count() as u64,
            schema: self.schema.clone(),
            defects: self.defects().count() as u64,
            part_rows: self.part_rows(),
        }
    }

    /// Rows of each dataset of a mix; empty where there is one dataset.
    fn part_rows(&self) -> Vec<u64> {
        let parts = self.shards.iter().map(|shard| shard.object.part).max().unwrap_or(0);
        if parts == 0 {
            return Vec::new();
        }
        let mut rows = vec![0; parts as usize + 1];
        for shard in &self.shards {
            rows[shard.object.part as usize] += shard.index.rows();
        }
        rows
    }

    /// Compares the shards as they are listed now with those that were indexed.
    ///
    /// # Errors
    /// One sentence that names the first difference and the fix.
    pub fn check_unchanged(&self, listed: &[ShardRef]) -> Result<(), String> {
        const FIX: &str = "restore it, or index again with `feedline index --rebuild`";
        for (shard, now) in self.shards.iter().zip(listed) {
            let then = &shard.object;
            if then.url != now.url {
                return Err(format!(
                    "the dataset changed after it was indexed: {} was where {} is now; {FIX}",
                    then.url, now.url
                ));
            }
            if then.size_bytes != now.size_bytes {
                return Err(format!(
                    "shard {} changed after it was indexed: {} bytes then, {} now; {FIX}",
                    now.url, then.size_bytes, now.size_bytes
                ));
            }
            if then.version != now.version {
                return Err(format!("shard {} was written again after it was indexed; {FIX}", now.url));
            }
        }
        if self.shards.len() != listed.len() {
            return Err(format!(
                "the dataset changed after it was indexed: {} shards then, {} now; {FIX}",
                self.shards.len(),
                listed.len()
            ));
        }
        Ok(())
    }
}

/// Widens `known` by the columns of another shard: whole numbers to floating point, single values to lists. Columns
/// that some shards lack are kept.
fn merge_schema(known: &mut Schema, other: &Schema, shard: &Shard, first: &Shard) -> Result<(), String> {
    for field in &other.fields {
        let Some(present) = known.get(&field.name) else {
            if known.fields.len() == MAX_COLUMNS {
                return Err(format!(
                    "the shards have more than {MAX_COLUMNS} columns together, as {} shows; name the columns wanted under \
                     `source.features`",
                    shard.object.url
                ));
            }
            known.set(&field.name, field.column_type.clone());
            continue;
        };
        let Some(wide) = join(present, &field.column_type) else {
            return Err(format!(
                "column `{}` is {} in {} but {} in {}; read them as two datasets, or leave the column out of `source.features`",
                field.name, present, first.object.url, field.column_type, shard.object.url
            ));
        };
        known.set(&field.name, wide);
    }
    Ok(())
}

fn join(a: &ColumnType, b: &ColumnType) -> Option<ColumnType> {
    use ColumnType::{Binary, List, Scalar};
    Some(match (a, b) {
        _ if a == b => a.clone(),
        (Scalar(a), Scalar(b)) => Scalar(join_scalars(*a, *b)?),
        (List(a), List(b)) => List(Box::new(join(a, b)?)),
        (List(items), single @ (Scalar(_) | Binary)) | (single @ (Scalar(_) | Binary), List(items)) => {
            List(Box::new(join(items, single)?))
        }
        _ => return None,
    })
}

fn join_scalars(a: ScalarType, b: ScalarType) -> Option<ScalarType> {
    use ScalarType::{Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    let rank = |scalar: ScalarType| match scalar {
        Int8 | UInt8 => Some((0, 1)),
        Int16 | UInt16 => Some((0, 2)),
        Int32 | UInt32 => Some((0, 4)),
        Int64 | UInt64 => Some((0, 8)),
        Float16 => Some((1, 2)),
        Float32 => Some((1, 4)),
        Float64 => Some((1, 8)),
        ScalarType::Bool => None,
    };
    let (low, high) = if rank(a)? <= rank(b)? { (a, b) } else { (b, a) };
    match (rank(low)?.0, rank(high)?.0) {
        (0, 1) if rank(low)?.1 >= 4 => Some(Float64),
        (0, 1) | (1, 1) => Some(high),
        // Signed and unsigned have no common type that keeps both exact.
        _ => (matches!(low, Int8 | Int16 | Int32 | Int64) == matches!(high, Int8 | Int16 | Int32 | Int64))
            .then_some(high),
    }
}

#[cfg(test)]
mod tests;
