//! The manifest of a dataset: shards with their row counts and block boundaries. Workers index the shards once. The
//! coordinator saves and reuses the manifest.

use serde::{Deserialize, Serialize};

use crate::schema::MAX_COLUMNS;
use crate::schema::{ColumnType, ScalarType, Schema};

/// An object in a store, as returned by a listing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardRef {
    /// Absolute URL, such as `file:///data/train-00000.tfrecord` or `s3://bucket/train-00000.tfrecord`.
    pub url: String,
    /// The size of the object in bytes.
    pub size_bytes: u64,
    /// The entity tag of the object, or the modification time if the store has no tags. Changes when the object is
    /// overwritten.
    pub version: String,
    /// The index of the object's dataset in a mix; 0 without a mix.
    #[serde(default)]
    pub part: u32,
}

/// A fixed row range of one shard: the smallest unit of reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The number of rows in the block; at least 1.
    pub rows: u32,
    /// The byte offset of the block in the shard. For columnar formats, the index of the block's first row in its row group.
    pub offset: u64,
    /// The encoded size of the block in bytes, used for reads, split sizes and admission.
    pub bytes: u64,
    /// The row group (Parquet) or record batch (Arrow) that contains the block; 0 for other formats.
    pub group: u32,
    /// The encoded size of each row in bytes, if rows are large enough to be read individually; empty otherwise. The rows
    /// are contiguous from `offset`.
    pub row_bytes: Vec<u32>,
}

/// A part of a shard that could not be read while indexing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defect {
    /// The byte offset in the shard.
    pub offset: u64,
    /// The cause, as part of a sentence.
    pub reason: String,
}

/// The index of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardIndex {
    /// The blocks in storage order.
    pub blocks: Vec<Block>,
    /// The columns of the shard's rows; `None` for a shard without rows. The schemas of all shards must be compatible.
    pub schema: Option<Schema>,
    /// The defects of the shard, such as a truncated last record. Under `on_error: fail` any defect fails the job.
    pub defects: Vec<Defect>,
}

impl ShardIndex {
    /// The number of rows of the shard.
    pub fn rows(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.rows)).sum()
    }
}

/// One shard with its index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The object that contains the shard.
    pub object: ShardRef,
    /// The rows and blocks of the shard.
    pub index: ShardIndex,
}

impl Shard {
    /// The number of bytes after the last readable row; 0 for a shard without defects. Indexing stops at the first defect.
    pub fn unreadable_bytes(&self) -> u64 {
        if self.index.defects.is_empty() {
            return 0;
        }
        let readable = self.index.blocks.last().map_or(0, |block| block.offset.saturating_add(block.bytes));
        self.object.size_bytes.saturating_sub(readable)
    }
}

/// The shards of a dataset in listing order. A row's id is its index in this order, from 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The columns of every row.
    pub schema: Schema,
    /// The shards in listing order.
    pub shards: Vec<Shard>,
}

/// The properties of a dataset that a job's layout and checks depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetSummary {
    /// A hash of shard names, sizes and row counts: see [`Manifest::fingerprint`].
    pub fingerprint: String,
    /// The number of rows.
    pub rows: u64,
    /// The encoded size of all rows in bytes.
    pub bytes: u64,
    /// The number of shards.
    pub shards: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The columns of every row.
    pub schema: Schema,
    /// The number of defects in all shards.
    pub defects: u64,
    /// The number of rows of each dataset of a mix; empty without a mix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part_rows: Vec<u64>,
}

impl Manifest {
    /// Builds the manifest of indexed shards.
    ///
    /// # Errors
    /// Returns a message that names the shard whose columns are incompatible with those of the other shards.
    pub fn build(shards: Vec<Shard>) -> Result<Self, String> {
        let mut merged: Option<(&Shard, Schema)> = None;
        for shard in &shards {
            let Some(schema) = &shard.index.schema else { continue };
            match &mut merged {
                None => merged = Some((shard, schema.clone())),
                Some((first, merged)) => merge_schema(merged, schema, shard, first)?,
            }
        }
        let schema = match merged {
            Some((_, schema)) => schema,
            None if shards.is_empty() => return Err("the dataset has no shards".to_owned()),
            None => {
                return Err(format!(
                    "the dataset has no rows: {} and {} other shards are empty; check `source.url`",
                    shards[0].object.url,
                    shards.len() - 1
                ));
            }
        };
        Ok(Self { schema, shards })
    }

    /// Returns a hash of the file names, sizes and row counts of all shards. A copy of the dataset has the same fingerprint.
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

    /// The defects with their shards, in listing order.
    pub fn defects(&self) -> impl Iterator<Item = (&Shard, &Defect)> {
        self.shards.iter().flat_map(|shard| shard.index.defects.iter().map(move |defect| (shard, defect)))
    }

    /// Returns the properties that a job's layout and checks depend on.
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

    /// The number of rows of each dataset of a mix; empty without a mix.
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

    /// Compares the shards in the store with the indexed shards.
    ///
    /// # Errors
    /// Returns a message that names the first difference and the fix.
    pub fn check_unchanged(&self, listed: &[ShardRef]) -> Result<(), String> {
        const FIX: &str = "restore the data, or rebuild the index with `feedline index --rebuild`";
        for (shard, current) in self.shards.iter().zip(listed) {
            let indexed = &shard.object;
            if indexed.url != current.url {
                return Err(format!(
                    "the dataset changed after indexing: expected shard {}, found {}; {FIX}",
                    indexed.url, current.url
                ));
            }
            if indexed.size_bytes != current.size_bytes {
                return Err(format!(
                    "shard {} changed after indexing: expected {} bytes, found {}; {FIX}",
                    current.url, indexed.size_bytes, current.size_bytes
                ));
            }
            if indexed.version != current.version {
                return Err(format!("shard {} was overwritten after indexing; {FIX}", current.url));
            }
        }
        if self.shards.len() != listed.len() {
            return Err(format!(
                "the dataset changed after indexing: expected {} shards, found {}; {FIX}",
                self.shards.len(),
                listed.len()
            ));
        }
        Ok(())
    }
}

/// Merges the columns of another shard into `merged`. Integers widen to floating point, and single values to lists. A column
/// may be missing from some shards.
fn merge_schema(merged: &mut Schema, other: &Schema, shard: &Shard, first: &Shard) -> Result<(), String> {
    for field in &other.fields {
        let Some(current) = merged.get(&field.name) else {
            if merged.fields.len() == MAX_COLUMNS {
                return Err(format!(
                    "shard {} brings the dataset above the limit of {MAX_COLUMNS} columns; list the required columns under `source.features`",
                    shard.object.url
                ));
            }
            merged.set(&field.name, field.column_type.clone());
            continue;
        };
        let Some(wide) = common_type(current, &field.column_type) else {
            return Err(format!(
                "column `{}` is {} in {} but {} in {}; read the shards as two datasets, or remove the column from `source.features`",
                field.name, current, first.object.url, field.column_type, shard.object.url
            ));
        };
        merged.set(&field.name, wide);
    }
    Ok(())
}

/// Returns the narrowest type that represents the values of both types, or `None` if there is no such type.
fn common_type(a: &ColumnType, b: &ColumnType) -> Option<ColumnType> {
    use ColumnType::{Binary, List, Scalar};
    Some(match (a, b) {
        _ if a == b => a.clone(),
        (Scalar(a), Scalar(b)) => Scalar(common_scalar(*a, *b)?),
        (List(a), List(b)) => List(Box::new(common_type(a, b)?)),
        (List(items), single @ (Scalar(_) | Binary)) | (single @ (Scalar(_) | Binary), List(items)) => {
            List(Box::new(common_type(items, single)?))
        }
        _ => return None,
    })
}

fn common_scalar(a: ScalarType, b: ScalarType) -> Option<ScalarType> {
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
        // No type represents all values of a signed and an unsigned type exactly.
        _ => (matches!(low, Int8 | Int16 | Int32 | Int64) == matches!(high, Int8 | Int16 | Int32 | Int64))
            .then_some(high),
    }
}

#[cfg(test)]
mod tests;
