//! Decompresses whole files whose decompressed size is known.

use std::io::Read;

use bytes::Bytes;

/// Maximum size of a decompressed file in bytes, because the whole file is in memory.
pub(crate) const MAX_DECOMPRESSED_BYTES: u64 = 512 << 20;

/// Maximum number of bytes that a thread of the runtime decodes at once. More bytes would delay other tasks of the thread.
const MAX_INLINE_BYTES: u64 = 256 << 10;

/// Runs work that decodes about this number of bytes: long work on a thread for blocking work.
///
/// # Errors
/// Returns a message if the work panics.
pub(crate) async fn off_runtime<T: Send + 'static>(
    bytes: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    if bytes <= MAX_INLINE_BYTES {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())
}

/// A compression of whole files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Brotli,
    Bzip2,
    Gzip,
    /// The raw format of Snappy without frames.
    Snappy,
    Zstd,
}

impl Compression {
    /// Decompresses a file. Fails if the result does not have `expected_bytes`.
    pub(crate) async fn decompress(self, bytes: Bytes, expected_bytes: u64) -> Result<Bytes, String> {
        off_runtime(expected_bytes, move || self.decompress_now(&bytes, expected_bytes)).await?
    }

    /// Decompresses a file on this thread.
    pub(crate) fn decompress_now(self, bytes: &[u8], expected_bytes: u64) -> Result<Bytes, String> {
        if expected_bytes > MAX_DECOMPRESSED_BYTES {
            return Err(format!(
                "it has {expected_bytes} bytes after decompression; the limit is {MAX_DECOMPRESSED_BYTES} bytes: write smaller files"
            ));
        }
        let wrong = |error: std::io::Error| format!("the file cannot be decompressed: {error}");
        let mut whole = Vec::with_capacity(expected_bytes as usize + 1);
        let mut read = |reader: &mut dyn Read| {
            // One byte more than expected reveals a longer file.
            reader.take(expected_bytes + 1).read_to_end(&mut whole).map_err(wrong)
        };
        match self {
            Self::Brotli => read(&mut brotli_decompressor::Decompressor::new(bytes, 1 << 16))?,
            Self::Bzip2 => read(&mut bzip2::read::MultiBzDecoder::new(bytes))?,
            Self::Gzip => read(&mut flate2::read::MultiGzDecoder::new(bytes))?,
            Self::Snappy => {
                let length = snap::raw::decompress_len(bytes).map_err(|error| wrong(error.into()))?;
                if length as u64 != expected_bytes {
                    return Err(unexpected(expected_bytes));
                }
                whole =
                    snap::raw::Decoder::new().decompress_vec(bytes).map_err(|error| wrong(error.into()))?;
                length
            }
            Self::Zstd => read(&mut zstd::stream::read::Decoder::new(bytes).map_err(wrong)?)?,
        };
        if whole.len() as u64 != expected_bytes {
            return Err(unexpected(expected_bytes));
        }
        Ok(whole.into())
    }
}

fn unexpected(expected_bytes: u64) -> String {
    format!(
        "the decompressed file does not have the {expected_bytes} bytes that the index expects: write the dataset again"
    )
}

/// Decompresses zstd frames. Fails if the result has more than `max_bytes`.
pub(crate) fn unzstd(bytes: &[u8], max_bytes: u64) -> Result<Vec<u8>, String> {
    let wrong = |error: std::io::Error| format!("the data cannot be decompressed: {error}");
    let mut whole = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(bytes).map_err(wrong)?;
    decoder.take(max_bytes.saturating_add(1)).read_to_end(&mut whole).map_err(wrong)?;
    if whole.len() as u64 > max_bytes {
        return Err(format!(
            "the data has more than {max_bytes} bytes after decompression: write smaller files"
        ));
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn compressed(data: &[u8]) -> Vec<(Compression, Vec<u8>)> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(data).unwrap();
        let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        bzip2.write_all(data).unwrap();
        vec![
            (Compression::Gzip, gzip.finish().unwrap()),
            (Compression::Bzip2, bzip2.finish().unwrap()),
            (Compression::Snappy, snap::raw::Encoder::new().compress_vec(data).unwrap()),
            (Compression::Zstd, zstd::encode_all(data, 1).unwrap()),
        ]
    }

    #[test]
    fn files_have_exactly_the_expected_size() {
        let data: Vec<u8> = (0..3_000_u32).map(|at| ((at * at) >> 5) as u8).collect();
        for (compression, bytes) in compressed(&data) {
            let run = |bytes: &[u8], expected| compression.decompress_now(bytes, expected);
            assert_eq!(run(&bytes, 3_000).unwrap(), data, "{compression:?}");
            for expected in [0, 2_999, 3_001] {
                assert!(
                    run(&bytes, expected).unwrap_err().contains("that the index expects"),
                    "{compression:?}"
                );
            }
            for length in 0..bytes.len() {
                assert!(run(&bytes[..length], 3_000).is_err(), "{compression:?} {length}");
            }
            assert!(run(&bytes, 1 << 40).unwrap_err().contains("limit"), "{compression:?}");
        }
    }

    #[test]
    fn a_bomb_stops_at_the_expected_size() {
        for (compression, bytes) in compressed(&vec![0; 32 << 20]) {
            assert!(compression.decompress_now(&bytes, 100).is_err(), "{compression:?}");
        }
    }
}
