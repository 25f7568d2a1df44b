//! The identity of a dataset's content: the content id of a manifest, and the id of its index.
//!
//! The content id identifies the rows of a dataset and their order. It covers the digests and the block tables of all
//! shards, but not their URLs, so a copy of a dataset has the same content id. Checkpoints and cached rows refer to it.
//!
//! The index id identifies a stored index. It also covers the URLs, validators and columns, because a job reads exactly
//! the listed versions of its shards.

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::content_id::{ChecksumParts, ContentId, ContentParts, ShardDigest};
use super::store_checksum::StoreChecksum;
use super::{Block, ColumnNotes, Manifest, Shard, ShardRef, ShardValue};

/// Modification time of an object whose server sends none.
const UNKNOWN_TIME: &str = "1970-01-01T00:00:00+00:00";
impl ShardRef {
    /// Whether the version of the object changes when the object is overwritten. A web server may send neither an entity tag
    /// nor a modification time.
    pub fn has_validator(&self) -> bool {
        !self.version.is_empty() && self.version != UNKNOWN_TIME
    }
}

/// A hash of fields with unambiguous boundaries.
struct FieldHash(Sha256);

impl FieldHash {
    fn new(domain: &str) -> Self {
        let mut hash = Self(Sha256::new());
        hash.bytes(domain.as_bytes());
        hash
    }

    fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn blocks(&mut self, blocks: &[Block]) {
        self.number(blocks.len() as u64);
        for block in blocks {
            let Block { rows, offset, bytes, group, row_bytes } = block;
            [u64::from(*rows), *offset, *bytes, u64::from(*group)]
                .iter()
                .for_each(|number| self.number(*number));
            self.number(row_bytes.len() as u64);
            row_bytes.iter().for_each(|bytes| self.0.update(bytes.to_le_bytes()));
        }
    }

    /// Adds the values that all rows of a shard have. Most shards have none, and their hashes do not change.
    fn values(&mut self, values: &[ShardValue]) {
        if !values.is_empty() {
            self.bytes(&json(&values));
        }
    }

    fn digest(&mut self, digest: &ShardDigest) {
        self.0.update([digest.tag()]);
        self.0.update(digest.hash());
    }

    /// Adds the kind of a checksum. A checksum that depends on more than the bytes belongs to the kind.
    fn checksum_kind(&mut self, checksum: Option<&StoreChecksum>) {
        let Some(checksum) = checksum else { return self.number(0) };
        self.number(u64::from(checksum.algorithm().tag()));
        self.number(u64::from(checksum.parts()));
        if !checksum.is_of_bytes() {
            self.bytes(checksum.value());
        }
    }

    fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Manifest {
    /// Returns the id of the dataset's rows. Unknown if a shard has no digest, because an earlier release indexed it.
    pub fn content_id(&self) -> ContentId {
        let mut content = FieldHash::new("feedline content 1");
        let mut validators = FieldHash::new("feedline validators 1");
        let mut algorithms = FieldHash::new("feedline checksum algorithms 1");
        let mut checksums = FieldHash::new("feedline checksums 1");
        let mut unchecked = FieldHash::new("feedline unchecked validators 1");
        let (mut has_validators, mut has_checksums) = (false, false);
        for shard in &self.shards {
            let Some(digest) = &shard.digest else { return ContentId::default() };
            content.number(u64::from(shard.object.part));
            content.number(shard.object.size_bytes);
            content.digest(digest);
            content.blocks(&shard.index.blocks);
            content.values(&shard.object.values);
            if digest.is_whole() {
                continue;
            }
            has_validators = true;
            validators.bytes(shard.object.version.as_bytes());
            algorithms.checksum_kind(digest.checksum());
            match digest.checksum() {
                Some(checksum) => {
                    has_checksums = true;
                    checksums.bytes(if checksum.is_of_bytes() { checksum.value() } else { &[] });
                }
                None => unchecked.bytes(shard.object.version.as_bytes()),
            }
        }
        let (validators, algorithms, checksums, unchecked) =
            (validators.finish(), algorithms.finish(), checksums.finish(), unchecked.finish());
        ContentId::of_parts(&ContentParts {
            content: &content.finish(),
            validators: has_validators.then_some(&validators),
            checksums: has_checksums.then_some(ChecksumParts {
                algorithms: &algorithms,
                checksums: &checksums,
                validators: &unchecked,
            }),
        })
    }

    /// Returns the id of the stored index: a hash of everything that it contains.
    pub fn index_id(&self) -> String {
        let mut hash = FieldHash::new("feedline index 1");
        let (mut schema, mut columns) = ((None, Vec::new()), (None, Vec::new()));
        hash.bytes(&json(&self.schema));
        for shard in &self.shards {
            let object = &shard.object;
            hash.bytes(object.url.as_bytes());
            hash.bytes(object.version.as_bytes());
            hash.number(object.size_bytes);
            hash.number(u64::from(object.part));
            match &shard.digest {
                Some(digest) => hash.digest(digest),
                None => hash.number(0),
            }
            if let Some(checksum) = shard.digest.as_ref().and_then(ShardDigest::checksum) {
                hash.checksum_kind(Some(checksum));
                hash.bytes(checksum.value());
            }
            hash.blocks(&shard.index.blocks);
            hash.values(&object.values);
            if let Some(compression) = &shard.index.compression {
                hash.bytes(&json(compression));
            }
            if !shard.index.list_pages.is_empty() {
                hash.bytes(&json(&shard.index.list_pages));
            }
            if let Some(graph) = &shard.index.graph {
                hash.bytes(&json(graph));
            }
            // Most shards have the same columns.
            if schema.0 != Some(&shard.index.schema) {
                schema = (Some(&shard.index.schema), json(&shard.index.schema));
            }
            hash.bytes(&schema.1);
            hash.bytes(&json(&shard.index.defects));
            // An index of an earlier release has no notes.
            if shard.index.columns != ColumnNotes::default() {
                if columns.0 != Some(&shard.index.columns) {
                    columns = (Some(&shard.index.columns), json(&shard.index.columns));
                }
                hash.bytes(&columns.1);
            }
        }
        hash.finish()
    }

    /// Whether `reference` names this index: the index id, or the fingerprint in a reference of an earlier release, which
    /// stored no digests.
    pub fn is_index(&self, reference: &str) -> bool {
        if is_index_id(reference) {
            self.index_id() == reference
        } else {
            !self.has_digests() && self.fingerprint() == reference
        }
    }

    /// Whether all shards have digests, so that the content of the dataset is known.
    pub fn has_digests(&self) -> bool {
        self.shards.iter().all(|shard| shard.digest.is_some())
    }
}

/// Whether a reference to a stored index is an index id. Earlier releases refer to indexes by fingerprint, which is shorter.
pub fn is_index_id(reference: &str) -> bool {
    reference.len() == 64
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("a part of an index is plain data")
}

impl Shard {
    /// Whether two shards contain the same rows, as far as their bytes were read.
    pub(super) fn has_same_content(&self, other: &Self) -> bool {
        let (Some(one), Some(two)) = (&self.digest, &other.digest) else { return false };
        let has_same_validator = || self.object.version == other.object.version;
        one.tag() == two.tag()
            && one.hash() == two.hash()
            && self.object.size_bytes == other.object.size_bytes
            && self.object.values == other.object.values
            && self.index.blocks == other.index.blocks
            && (one.proves_same_bytes(two) || has_same_validator())
    }
}

#[cfg(test)]
mod tests;
