//! Samples of MosaicML Streaming and LitData: a file has a table of offsets, and a sample has the sizes of its values
//! before the values.

mod arrays;
mod decode;
mod encoding;
mod nested;
mod offsets;
mod pixels;
mod values;

use std::ops::Range;

pub(super) use arrays::{ArrayEncoding, numpy_scalar, torch_scalar};
pub(super) use decode::{build_index, decode_rows};
pub(super) use encoding::ValueEncoding;
pub(super) use offsets::{DecompressSample, OffsetTable, index_rows};

/// How the samples of a file store their values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SampleLayout {
    pub(super) columns: Vec<SampleColumn>,
    /// Whether a sample begins with the sizes of its values. Without sizes, the whole sample is the only value.
    pub(super) has_sizes: bool,
}

/// One value of each sample.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SampleColumn {
    pub(super) name: String,
    /// The encoding, or the reason why the values cannot be read.
    pub(super) encoding: Result<ValueEncoding, String>,
    /// The size of a value in bytes if samples do not store it.
    pub(super) fixed_bytes: Option<u32>,
}

impl SampleLayout {
    /// Whether the types of the columns depend on the data.
    pub(super) fn needs_sample(&self) -> bool {
        let mut encodings = self.columns.iter().filter_map(|column| column.encoding.as_ref().ok());
        encodings.any(ValueEncoding::needs_sample)
    }

    /// Returns the ranges of the values in the sample at the start of `bytes`. The last range ends at the end of the sample.
    pub(super) fn value_ranges(&self, bytes: &[u8]) -> Result<Vec<Range<usize>>, String> {
        if !self.has_sizes {
            return Ok(std::iter::once(0..bytes.len()).collect());
        }
        let stored = self.columns.iter().filter(|column| column.fixed_bytes.is_none()).count();
        let mut sizes = bytes.get(..4 * stored).ok_or_else(truncated)?.chunks_exact(4).map(u32_at);
        let mut end = 4 * stored;
        let mut ranges = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            let size = column.fixed_bytes.or_else(|| sizes.next()).ok_or_else(truncated)?;
            let start = end;
            end += size as usize;
            if end > bytes.len() {
                return Err(format!("column `{}`: {}", column.name, truncated()));
            }
            ranges.push(start..end);
        }
        Ok(ranges)
    }

    /// Returns the ranges of consecutive samples.
    pub(super) fn split(&self, bytes: &[u8]) -> Result<Vec<Range<usize>>, crate::rows::SplitError> {
        let mut samples = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let ranges = self.value_ranges(&bytes[at..]);
            let ranges = ranges.map_err(|reason| crate::rows::SplitError { at, reason })?;
            let end = at + ranges.last().map_or(0, |last| last.end);
            if end == at {
                let reason = "a sample without values cannot be read: write the dataset again".to_owned();
                return Err(crate::rows::SplitError { at, reason });
            }
            samples.push(at..end);
            at = end;
        }
        Ok(samples)
    }
}

fn truncated() -> String {
    "the sizes of the values exceed the sample: the file is corrupted".to_owned()
}

/// Reads a little-endian number from the first four bytes.
pub(super) fn u32_at(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_split_by_their_sizes() {
        let column = |name: &str, fixed_bytes| SampleColumn {
            name: name.to_owned(),
            encoding: Ok(ValueEncoding::Bytes),
            fixed_bytes,
        };
        let layout = SampleLayout {
            columns: vec![column("a", None), column("b", Some(2)), column("c", None)],
            has_sizes: true,
        };
        let sample = b"\x01\0\0\0\x03\0\0\0abbccc";
        let ranges = layout.value_ranges(sample).unwrap();
        assert_eq!(ranges, [8..9, 9..11, 11..14]);
        let spans = layout.split(&[sample.as_slice(), sample].concat()).ok().unwrap();
        assert_eq!(spans, [0..14, 14..28]);
        for length in 1..sample.len() {
            assert!(layout.split(&sample[..length]).is_err(), "{length}");
        }
        assert!(SampleLayout { columns: Vec::new(), has_sizes: true }.split(b"x").is_err());
    }
}
