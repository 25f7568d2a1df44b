//! Encodings of cached rows: measures the cost of each encoding on a few rows of a job, encodes rows, and limits the
//! CPU time for encoding.

mod encoder;
mod kernel_time;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use feedline_data::messages::EncodingStats;
use feedline_data::pipeline::{CacheEncoding, Pipeline};
use feedline_operators::{BuiltOperator, Chunk, Decoding, OutputBuffers, encode_row};

pub(crate) use self::encoder::{CacheEncoder, EncodingPermission};
pub(crate) use self::kernel_time::KernelTime;
use super::trace::thread_cpu;

/// One row of every `TRIAL_INTERVAL`-th chunk is measured.
const TRIAL_INTERVAL: u64 = 32;
/// Maximum number of measured rows.
const TRIALS_MAX: u64 = 16;
/// Rows are encoded without a time limit if later passes save at least this multiple of the encoding cost.
const REPAY_FACTOR: f64 = 2.0;

/// Measured costs of the encodings of one job.
#[derive(Debug)]
pub(crate) struct EncodingTrials {
    /// Index of the first operator that decodes images. No earlier operator is random.
    pub(crate) operator: usize,
    decoding: Decoding,
    chunks: AtomicU64,
    stats: Mutex<[EncodingStats; CacheEncoding::TRANSFORMED.len()]>,
}

impl EncodingTrials {
    /// Returns `None` if rows cannot be cached before an operator that decodes images.
    pub(crate) fn new(pipeline: &Pipeline, operators: &[BuiltOperator]) -> Option<Self> {
        let operator = operators.iter().position(|operator| operator.decoding.is_some())?;
        let mut running = pipeline.operators.iter().filter(|operator| !operator.kind.is_engine_operator());
        if running.by_ref().take(operator).any(|earlier| earlier.kind.is_random()) {
            return None;
        }
        let none = |encoding| EncodingStats {
            operators_before: operator as u32,
            encoding,
            ..EncodingStats::default()
        };
        Some(Self {
            operator,
            decoding: operators[operator].decoding.clone()?,
            chunks: AtomicU64::new(0),
            stats: Mutex::new(CacheEncoding::TRANSFORMED.map(none)),
        })
    }

    /// Measures all encodings on one row of every [`TRIAL_INTERVAL`]-th chunk, before `operator` decodes the row.
    pub(crate) fn measure_some(&self, chunk: &Chunk, operator: &BuiltOperator) {
        let number = self.chunks.fetch_add(1, Ordering::Relaxed);
        if number % TRIAL_INTERVAL == TRIAL_INTERVAL - 1
            && number / TRIAL_INTERVAL < TRIALS_MAX
            && chunk.rows() > 0
        {
            for (index, encoding) in CacheEncoding::TRANSFORMED.into_iter().enumerate() {
                if let Some(measured) = self.measure(chunk, operator, encoding) {
                    self.lock()[index].add(&measured);
                }
            }
        }
    }

    fn measure(
        &self,
        chunk: &Chunk,
        operator: &BuiltOperator,
        encoding: CacheEncoding,
    ) -> Option<EncodingStats> {
        let timed = |mut one: Chunk| {
            let begun = thread_cpu();
            operator.operator.apply(&mut one, &mut OutputBuffers::new()).ok()?;
            Some((thread_cpu() - begun).as_nanos() as u64).filter(|_| one.failures.is_empty())
        };
        let (plain, plain_bytes) = encode_row(chunk, 0, &self.decoding, CacheEncoding::AsIs)?;
        let begun = thread_cpu();
        let (made, bytes) = encode_row(chunk, 0, &self.decoding, encoding)?;
        let make_ns = (thread_cpu() - begun).as_nanos() as u64;
        Some(EncodingStats {
            rows: 1,
            plain_bytes: plain_bytes as u64,
            encoded_bytes: bytes as u64,
            encode_ns: make_ns,
            plain_ns: timed(plain)?,
            encoded_ns: timed(made)?,
            ..EncodingStats::default()
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, [EncodingStats; CacheEncoding::TRANSFORMED.len()]> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the measured costs of each encoding.
    pub(crate) fn stats(&self) -> Vec<EncodingStats> {
        self.lock().iter().filter(|encoding| encoding.rows > 0).copied().collect()
    }

    /// Whether an encoding saves [`REPAY_FACTOR`] times its cost in this number of passes.
    fn repays(&self, encoding: CacheEncoding, passes: f64) -> bool {
        let stats = self.lock();
        let Some(encoding) = stats.iter().find(|known| known.encoding == encoding) else { return false };
        encoding.rows > 0
            && passes * encoding.plain_ns.saturating_sub(encoding.encoded_ns) as f64
                > REPAY_FACTOR * encoding.encode_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, BinaryViewArray};
    use feedline_data::pipeline::Source;
    use feedline_data::schema::{ColumnType, Schema};
    use feedline_operators::{Column, build_operators};

    use super::*;

    #[test]
    fn an_encoding_repays_if_enough_passes_follow() {
        let pixels = EncodingStats {
            encoding: CacheEncoding::Pixels,
            rows: 3,
            encode_ns: 30,
            plain_ns: 20,
            encoded_ns: 10,
            ..EncodingStats::default()
        };
        let indexed = EncodingStats {
            encoding: CacheEncoding::Indexed,
            rows: 3,
            encode_ns: 1,
            plain_ns: 10,
            encoded_ns: 20,
            ..EncodingStats::default()
        };
        let mut stats =
            CacheEncoding::TRANSFORMED.map(|encoding| EncodingStats { encoding, ..EncodingStats::default() });
        let trials = |stats| EncodingTrials {
            operator: 0,
            decoding: Decoding { column: "image".to_owned(), size: [8, 8] },
            chunks: AtomicU64::new(0),
            stats: Mutex::new(stats),
        };
        assert!(!trials(stats).repays(CacheEncoding::Pixels, 1e9), "no encoding was measured");
        for known in &mut stats {
            *known = if known.encoding == CacheEncoding::Pixels { pixels } else { indexed };
        }
        let trials = trials(stats);
        // Each pass saves 10 ns, and encoding must save twice its cost of 30 ns.
        assert!(!trials.repays(CacheEncoding::Pixels, 6.0) && trials.repays(CacheEncoding::Pixels, 7.0));
        assert!(!trials.repays(CacheEncoding::Indexed, 1e9), "decoding this encoding is slower");
        assert_eq!(trials.stats().len(), CacheEncoding::TRANSFORMED.len());
    }

    /// A chunk of the same JPEG in each row.
    fn chunk(jpeg: &[u8], rows: usize) -> Chunk {
        let images: BinaryViewArray = std::iter::repeat_n(Some(jpeg), rows).collect();
        let columns = vec![("image".to_owned(), Column::Arrow(Arc::new(images) as ArrayRef))];
        Chunk::new(columns, (0..rows as u64).collect(), vec![0; rows])
    }

    #[test]
    fn one_row_of_some_chunks_is_measured_with_each_encoding() {
        let jpeg = include_bytes!("../../jpeg/testdata/420.jpg");
        let pipeline =
            Pipeline::builder("p").source(Source::files("x")).center_crop("image", [64, 64]).batch(1);
        let pipeline = pipeline.build().expect("a valid pipeline");
        let mut schema = Schema::default();
        schema.set("image", ColumnType::Binary);
        let operators =
            build_operators(&pipeline, &schema, &|url| Err(url.to_owned())).expect("valid operators");
        let trials = EncodingTrials::new(&pipeline, &operators).expect("an operator decodes images");
        for number in 1..=4 * TRIAL_INTERVAL {
            // An empty chunk has no row to measure.
            let rows = if number == TRIAL_INTERVAL { 0 } else { 2 };
            trials.measure_some(&chunk(jpeg, rows), &operators[0]);
        }
        let stats = trials.stats();
        assert_eq!(stats.len(), CacheEncoding::TRANSFORMED.len());
        for stats in stats {
            assert_eq!((stats.rows, stats.plain_bytes), (3, 3 * jpeg.len() as u64));
            assert!(stats.encoded_bytes > stats.plain_bytes, "{stats:?}");
            assert!(stats.encode_ns > 0 && stats.plain_ns > 0 && stats.encoded_ns > 0, "{stats:?}");
        }
    }
}
