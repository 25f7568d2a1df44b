//! The digest of a shard, and the id of the content of a dataset.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::store_checksum::StoreChecksum;

/// Separates the parts of a content id.
const SEPARATOR: char = '-';

/// A digest of the bytes that were read to index a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShardDigest {
    /// SHA-256 of all bytes of the shard.
    Whole([u8; 32]),
    /// SHA-256 of the parts that indexing reads, such as the footer of a Parquet file. The content of the shard is the same
    /// only if its validator is the same too.
    Parts([u8; 32]),
    /// The same, with the checksum of all bytes that the store keeps with the object.
    PartsWithChecksum {
        /// SHA-256 of the parts that indexing reads.
        parts: [u8; 32],
        /// The checksum of the store.
        checksum: StoreChecksum,
    },
}

impl ShardDigest {
    /// Returns the digest of all bytes of a shard.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self::Whole(Sha256::digest(bytes).into())
    }

    /// Returns the digest of a range of offsets of a topic. The topic and the offsets identify the records.
    pub fn of_version(version: &str) -> Self {
        Self::Parts(Sha256::digest(version.as_bytes()).into())
    }

    /// Adds the checksum of the store to a digest that does not cover all bytes of the shard.
    pub fn with_checksum(self, checksum: Option<StoreChecksum>) -> Self {
        match (self, checksum) {
            (Self::Parts(parts), Some(checksum)) => Self::PartsWithChecksum { parts, checksum },
            _ => self,
        }
    }

    /// Whether the digest is the hash of all bytes of the shard.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }

    /// The SHA-256 hash of all bytes, or of the parts that indexing reads.
    pub fn hash(&self) -> &[u8; 32] {
        match self {
            Self::Whole(hash) | Self::Parts(hash) | Self::PartsWithChecksum { parts: hash, .. } => hash,
        }
    }

    /// The checksum of the store, if the digest contains it.
    pub fn checksum(&self) -> Option<&StoreChecksum> {
        match self {
            Self::PartsWithChecksum { checksum, .. } => Some(checksum),
            Self::Whole(_) | Self::Parts(_) => None,
        }
    }

    /// Whether two shards with these digests have the same bytes, whatever their validators are.
    pub(super) fn proves_same_bytes(&self, other: &Self) -> bool {
        self == other && (self.is_whole() || self.checksum().is_some())
    }

    /// Whether two objects with these digests have other bytes, because their store has other checksums of the same kind.
    pub(super) fn proves_other_bytes(&self, other: &Self) -> bool {
        self.checksum().zip(other.checksum()).is_some_and(|(one, other)| {
            one.algorithm() == other.algorithm()
                && one.is_of_bytes()
                && other.is_of_bytes()
                && one.value() != other.value()
        })
    }

    pub(super) fn tag(&self) -> u8 {
        match self {
            Self::Whole(_) => 1,
            // The checksum is not a part of the hash of the content, so that a dataset keeps it when the store adds checksums.
            Self::Parts(_) | Self::PartsWithChecksum { .. } => 2,
        }
    }
}

/// Identifies the rows of a dataset: a hash of everything that was derived from bytes. If some shards have no digest of all
/// their bytes, a second hash covers the validators of these shards. If the store returned checksums for some of them, further
/// hashes cover the checksums. Empty for an index of an earlier release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContentId(String);

/// The parts of a content id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContentParts<'a> {
    /// Covers what was derived from bytes.
    pub(super) content: &'a str,
    /// Covers the validators of the shards without a digest of all bytes. `None` if there are none.
    pub(super) validators: Option<&'a str>,
    /// `None` if the store returned no checksums.
    pub(super) checksums: Option<ChecksumParts<'a>>,
}

/// The parts of a content id that cover the shards without a digest of all bytes, some of which have checksums of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChecksumParts<'a> {
    /// Covers the algorithms, and the checksums that depend on the sizes of the parts of an upload.
    pub(super) algorithms: &'a str,
    /// Covers the checksums of bytes.
    pub(super) checksums: &'a str,
    /// Covers the validators of the shards without checksums.
    pub(super) validators: &'a str,
}

impl ContentId {
    pub(super) fn of_parts(parts: &ContentParts<'_>) -> Self {
        let checksums =
            parts.checksums.iter().flat_map(|part| [part.algorithms, part.checksums, part.validators]);
        let all: Vec<&str> = [parts.content].into_iter().chain(parts.validators).chain(checksums).collect();
        Self(all.join(&SEPARATOR.to_string()))
    }

    fn parts(&self) -> ContentParts<'_> {
        let mut parts = self.0.split(SEPARATOR);
        let content = parts.next().unwrap_or_default();
        let validators = parts.next();
        let checksums = match (parts.next(), parts.next(), parts.next()) {
            (Some(algorithms), Some(checksums), Some(validators)) => {
                Some(ChecksumParts { algorithms, checksums, validators })
            }
            _ => None,
        };
        ContentParts { content, validators, checksums }
    }

    /// Whether the content is not identified, because an earlier release wrote the index.
    pub fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }

    /// The text of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A prefix of the id for messages.
    pub fn short(&self) -> &str {
        self.0.get(..16).unwrap_or(&self.0)
    }

    /// The id without the checksums of the store, which identifies the same rows. An index may get or lose checksums while its
    /// shards stay the same.
    pub fn without_checksums(&self) -> Self {
        Self::of_parts(&ContentParts { checksums: None, ..self.parts() })
    }

    /// Whether both datasets have the same rows: the validators of the shards without a digest of all bytes are equal, or the
    /// checksums of the store.
    pub fn is_same_content(&self, other: &Self) -> bool {
        let (one, other) = (self.parts(), other.parts());
        !self.is_unknown()
            && one.content == other.content
            && (one.validators == other.validators
                || one.checksums.is_some() && one.checksums == other.checksums)
    }

    /// Whether both datasets are equal as far as their bytes were read and as far as the store returned checksums of the same
    /// kind, and differ only in the validators of shards without a digest of all bytes.
    pub fn may_be_reuploaded(&self, other: &Self) -> bool {
        let (one, other) = (self.parts(), other.parts());
        let has_other_checksums = match (one.checksums, other.checksums) {
            (Some(one), Some(other)) => {
                one.algorithms == other.algorithms && one.checksums != other.checksums
            }
            _ => false,
        };
        !self.is_unknown()
            && one.content == other.content
            && one.validators.is_some() == other.validators.is_some()
            && !has_other_checksums
    }
}

impl From<String> for ContentId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<ContentId> for String {
    fn from(id: ContentId) -> Self {
        id.0
    }
}
