//! How a compressed shard is read: its codec, and the points in its compressed data from which decoding can start.

use serde::{Deserialize, Serialize};

/// A compression format of whole files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// gzip (RFC 1952), with any number of members.
    Gzip,
    /// Zstandard (RFC 8878), with any number of frames.
    Zstd,
    /// bzip2, with any number of streams.
    Bzip2,
    /// xz, with any number of streams and blocks.
    Xz,
    /// zlib (RFC 1950), with any number of streams. TensorFlow writes such TFRecord files.
    Zlib,
}

impl Codec {
    /// All codecs.
    pub const ALL: [Self; 5] = [Self::Gzip, Self::Zstd, Self::Bzip2, Self::Xz, Self::Zlib];

    /// The name of the codec in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Bzip2 => "bzip2",
            Self::Xz => "xz",
            Self::Zlib => "zlib",
        }
    }
}

/// The compression that a source declares for all of its shards. Otherwise, the first bytes of each shard determine it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceCompression {
    /// The bytes of the shards are the content, whatever they begin with.
    #[serde(rename = "none")]
    Uncompressed,
    /// See [`Codec::Gzip`].
    Gzip,
    /// See [`Codec::Zstd`].
    Zstd,
    /// See [`Codec::Bzip2`].
    Bzip2,
    /// See [`Codec::Xz`].
    Xz,
    /// See [`Codec::Zlib`].
    Zlib,
}

impl SourceCompression {
    /// The codec of the shards; `None` if they are not compressed.
    pub fn codec(self) -> Option<Codec> {
        match self {
            Self::Uncompressed => None,
            Self::Gzip => Some(Codec::Gzip),
            Self::Zstd => Some(Codec::Zstd),
            Self::Bzip2 => Some(Codec::Bzip2),
            Self::Xz => Some(Codec::Xz),
            Self::Zlib => Some(Codec::Zlib),
        }
    }

    /// The value in pipeline files.
    pub fn name(self) -> &'static str {
        self.codec().map_or("none", Codec::name)
    }
}

/// A position in the content of a compressed shard from which decoding can start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessPoint {
    /// The offset in the shard at which the decoder starts, in bits.
    pub bit_offset: u64,
    /// The offset in the content of the first byte that the decoder produces.
    pub content_offset: u64,
    /// What the decoder needs to start, in the format of the codec. May be empty. For gzip: the compressed window.
    pub state: Vec<u8>,
}

/// The compression of a shard. Offsets of its blocks and defects are offsets in its content, the decompressed data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardCompression {
    /// The codec of the shard.
    pub codec: Codec,
    /// The size of the content in bytes, up to the first error in the compressed data.
    pub content_bytes: u64,
    /// The number of bytes of the shard up to the first error in the compressed data.
    pub readable_bytes: u64,
    /// The memory of a decoder of the shard in bytes. 0 if an earlier release indexed the shard.
    #[serde(default)]
    pub decoder_bytes: u64,
    /// The access points in ascending order. The start of the shard is always an access point, and is not in the list.
    pub points: Vec<AccessPoint>,
}

impl ShardCompression {
    /// Checks the order of the access points.
    ///
    /// # Errors
    /// Returns the reason why a decoder cannot use them.
    pub fn check(&self) -> Result<(), String> {
        let mut before = (0, 0);
        for point in &self.points {
            let offsets = (point.bit_offset, point.content_offset);
            if offsets.0 <= before.0 || offsets.1 < before.1 || offsets.1 > self.content_bytes {
                return Err(format!(
                    "the access point at bit {} of a compressed shard is out of order",
                    offsets.0
                ));
            }
            before = offsets;
        }
        Ok(())
    }

    /// Returns the index of the last access point at or before an offset in the content. `None` is the start of the shard.
    pub fn point_before(&self, content_offset: u64) -> Option<usize> {
        self.points.partition_point(|point| point.content_offset <= content_offset).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compression(points: &[(u64, u64)]) -> ShardCompression {
        let point =
            |&(bit_offset, content_offset)| AccessPoint { bit_offset, content_offset, state: Vec::new() };
        let points = points.iter().map(point).collect();
        ShardCompression {
            codec: Codec::Gzip,
            content_bytes: 100,
            readable_bytes: 50,
            decoder_bytes: 9,
            points,
        }
    }

    #[test]
    fn the_last_point_at_or_before_an_offset_is_found() {
        let compression = compression(&[(80, 10), (160, 20), (240, 20)]);
        let found = [0, 9, 10, 19, 20, 99].map(|offset| compression.point_before(offset));
        assert_eq!(found, [None, None, Some(0), Some(0), Some(2), Some(2)]);
    }

    #[test]
    fn points_that_are_out_of_order_are_rejected() {
        assert_eq!(compression(&[(80, 10), (160, 20), (240, 100)]).check(), Ok(()));
        for points in [&[(0, 0)][..], &[(80, 10), (80, 20)], &[(80, 10), (90, 9)], &[(80, 101)]] {
            assert!(compression(points).check().is_err(), "{points:?}");
        }
    }
}
