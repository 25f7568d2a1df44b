//! Checksums that object stores keep with objects, such as the CRC that S3 computes for each upload.

use serde::{Deserialize, Serialize};

/// Maximum number of bytes of a checksum, which is that of SHA-256.
const MAX_BYTES: usize = 32;

/// How a store computes a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChecksumAlgorithm {
    /// CRC-32 of zlib.
    Crc32,
    /// CRC-32C (Castagnoli).
    Crc32c,
    /// CRC-64/NVME, which S3 computes for uploads without another checksum.
    Crc64Nvme,
    /// MD5.
    Md5,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
}

impl ChecksumAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 6] =
        [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Md5, Self::Sha1, Self::Sha256];

    /// The number of bytes of a checksum.
    pub fn bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => MAX_BYTES,
        }
    }

    /// A number that identifies the algorithm in content ids.
    pub(super) fn tag(self) -> u8 {
        match self {
            Self::Crc32 => 1,
            Self::Crc32c => 2,
            Self::Crc64Nvme => 3,
            Self::Md5 => 4,
            Self::Sha1 => 5,
            Self::Sha256 => 6,
        }
    }
}

/// A checksum of all bytes of an object, as its store returned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreChecksum {
    algorithm: ChecksumAlgorithm,
    /// The number of parts of a multipart upload, whose checksum is that of the checksums of the parts. 0 for a checksum of the
    /// bytes themselves.
    parts: u32,
    /// The checksum, followed by zeros.
    value: [u8; MAX_BYTES],
}

impl StoreChecksum {
    /// Creates a checksum. `None` if it does not have the size of the algorithm. `parts` is 0 for a checksum of the bytes
    /// themselves, and the number of parts for a checksum of the checksums of parts.
    pub fn new(algorithm: ChecksumAlgorithm, parts: u32, bytes: &[u8]) -> Option<Self> {
        let mut value = [0; MAX_BYTES];
        value.get_mut(..algorithm.bytes())?.copy_from_slice(bytes.get(..algorithm.bytes())?);
        (bytes.len() == algorithm.bytes()).then_some(Self { algorithm, parts, value })
    }

    /// The algorithm.
    pub fn algorithm(&self) -> ChecksumAlgorithm {
        self.algorithm
    }

    /// The number of parts whose checksums the checksum covers; 0 for a checksum of the bytes themselves.
    pub fn parts(&self) -> u32 {
        self.parts
    }

    /// The bytes of the checksum.
    pub fn value(&self) -> &[u8] {
        &self.value[..self.algorithm.bytes()]
    }

    /// Whether the same bytes always have this checksum. The checksum of a multipart upload also depends on the sizes of the
    /// parts, so another checksum does not mean other bytes.
    pub fn is_of_bytes(&self) -> bool {
        self.parts == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_has_the_size_of_its_algorithm() {
        for algorithm in ChecksumAlgorithm::ALL {
            let bytes = vec![7; algorithm.bytes()];
            let checksum = StoreChecksum::new(algorithm, 0, &bytes).expect("the size is right");
            assert_eq!((checksum.algorithm(), checksum.value()), (algorithm, bytes.as_slice()));
            for size in [0, algorithm.bytes() - 1, algorithm.bytes() + 1, 64] {
                assert_eq!(
                    StoreChecksum::new(algorithm, 0, &vec![7; size]),
                    None,
                    "{algorithm:?}, {size} bytes"
                );
            }
        }
    }

    #[test]
    fn every_algorithm_has_a_tag_of_its_own() {
        assert_eq!(ChecksumAlgorithm::ALL.map(ChecksumAlgorithm::tag), [1, 2, 3, 4, 5, 6]);
    }
}
