//! The compression of shards. Access points are packed: one list for each field.

use feedline_data::compression::{AccessPoint, Codec, ShardCompression, SourceCompression};

use super::{Wire, WireError, enumeration};
use crate::wire;

enumeration!(Codec, { Gzip, Zstd, Bzip2, Xz, Zlib });
enumeration!(SourceCompression, { Uncompressed, Gzip, Zstd, Bzip2, Xz, Zlib });

impl Wire<wire::ShardCompression> for ShardCompression {
    fn into_wire(self) -> wire::ShardCompression {
        wire::ShardCompression {
            codec: self.codec.into_wire(),
            content_bytes: self.content_bytes,
            readable_bytes: self.readable_bytes,
            decoder_bytes: self.decoder_bytes,
            bit_offsets: self.points.iter().map(|point| point.bit_offset).collect(),
            content_offsets: self.points.iter().map(|point| point.content_offset).collect(),
            states: self.points.into_iter().map(|point| point.state.into()).collect(),
        }
    }

    fn from_wire(message: wire::ShardCompression, field: &str) -> Result<Self, WireError> {
        let count = message.states.len();
        if [message.bit_offsets.len(), message.content_offsets.len()] != [count; 2] {
            return Err(WireError(format!(
                "the lists of access points of a shard do not all have {count} entries"
            )));
        }
        let offsets = message.bit_offsets.into_iter().zip(message.content_offsets);
        let points = offsets.zip(message.states).map(|((bit_offset, content_offset), state)| AccessPoint {
            bit_offset,
            content_offset,
            state: state.into(),
        });
        let compression = Self {
            codec: Wire::from_wire(message.codec, field)?,
            content_bytes: message.content_bytes,
            readable_bytes: message.readable_bytes,
            decoder_bytes: message.decoder_bytes,
            points: points.collect(),
        };
        compression.check().map_err(WireError)?;
        Ok(compression)
    }
}
