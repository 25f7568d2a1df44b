//! The writer thread of the disk tier, which appends rows to segments and evicts segments.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use feedline_common::files::{create_private_folder, private_file_options};
use tokio::sync::oneshot;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::folders::record_use;
use super::index::{DiskIndex, MAGIC, RECORD_HEADER_BYTES, RowLocation, lock};
use super::shared::Shared;
use crate::cache::rows::{CachedRow, Prefix};

/// Maximum segment size. A segment is closed when it reaches this size.
const MAX_SEGMENT_BYTES: u64 = 256 << 20;
/// Minimum number of segments in a full tier. Segments are evicted as a whole, so they must be much smaller than the
/// tier.
const SEGMENTS_PER_LIMIT: u64 = 64;
/// Minimum segment size, because each file has an overhead.
const MIN_SEGMENT_BYTES: u64 = 64 << 10;
/// Interval at which the last use of the part is recorded, so that the record survives a crash.
const USE_RECORD_INTERVAL: Duration = Duration::from_secs(3600);

pub(super) enum WriterCommand {
    Append(Prefix, Vec<CachedRow>),
    Flush(oneshot::Sender<()>),
}

pub(super) struct SegmentWriter {
    pub(super) shared: Arc<Shared>,
    segment_bytes: u64,
    /// A unique id of this writer, which is part of the names of its segments.
    writer_id: u64,
    /// Number of segments that this writer has created.
    segment_count: u32,
    /// The open segments, at most one per active prefix.
    pub(super) open_segments: BTreeMap<Prefix, OpenSegment>,
    /// Whether the last write failed.
    last_write_failed: bool,
}

/// An open segment. New rows are appended to it.
pub(super) struct OpenSegment {
    index: Arc<DiskIndex>,
    segment: u32,
    file: Arc<File>,
    bytes: u64,
}

impl SegmentWriter {
    pub(super) fn new(shared: Arc<Shared>, limit_bytes: u64) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            shared,
            segment_bytes: (limit_bytes / SEGMENTS_PER_LIMIT).clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES),
            writer_id: now.as_nanos() as u64 ^ u64::from(std::process::id()) << 40,
            segment_count: 0,
            open_segments: BTreeMap::new(),
            last_write_failed: false,
        }
    }

    /// Executes commands until the last sender is dropped.
    pub(super) fn run(mut self, commands: &mpsc::Receiver<WriterCommand>) {
        let mut last_record = Instant::now();
        loop {
            let command = commands.recv_timeout(USE_RECORD_INTERVAL);
            if last_record.elapsed() >= USE_RECORD_INTERVAL {
                record_use(&self.shared.folder);
                last_record = Instant::now();
            }
            match command {
                Ok(command) => self.execute(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn execute(&mut self, command: WriterCommand) {
        match command {
            WriterCommand::Flush(done) => drop(done.send(())),
            WriterCommand::Append(prefix, rows) => {
                let bytes: u64 = rows.iter().map(|(_, bytes)| bytes.len() as u64).sum();
                if !self.shared.has_failed.load(Ordering::Relaxed) {
                    let result = self.append(prefix, rows);
                    self.record_result(result);
                }
                self.shared.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Stops storing rows after a failed write, until the active prefixes are set again. Logs only the first of consecutive failures.
    fn record_result(&mut self, result: io::Result<()>) {
        let last_write_failed = std::mem::replace(&mut self.last_write_failed, result.is_err());
        if let Err(error) = result {
            self.shared.has_failed.store(true, Ordering::Relaxed);
            if !last_write_failed {
                let folder = self.shared.folder.display();
                tracing::warn!(%folder, %error, "cannot write cached rows; retrying when the worker's jobs change");
            }
        }
    }

    /// Appends the rows that are not stored yet and fit into the tier.
    fn append(&mut self, prefix: Prefix, mut rows: Vec<CachedRow>) -> io::Result<()> {
        // The index is missing if all segments were evicted after the prefix was opened.
        let index = match self.shared.index(prefix) {
            Some(index) => index,
            None => self.shared.load(prefix)?,
        };
        index.retain_new(&mut rows);
        // The overhead includes the magic bytes of a new segment.
        let overhead = (RECORD_HEADER_BYTES, MAGIC.len() as u64);
        let bytes = lock(&self.shared.evictions).admit(prefix, &mut rows, overhead);
        if rows.is_empty() || !self.make_room(prefix, bytes)? {
            return Ok(());
        }
        let mut segment = match self.open_segments.remove(&prefix) {
            Some(open) if open.bytes < self.segment_bytes => open,
            _ => self.create(prefix, index)?,
        };
        let written = segment.append(rows);
        self.open_segments.insert(prefix, segment);
        let written = written?;
        let mut evictions = lock(&self.shared.evictions);
        evictions.add(prefix, written);
        evictions.count_stored(written);
        Ok(())
    }

    fn create(&mut self, prefix: Prefix, index: Arc<DiskIndex>) -> io::Result<OpenSegment> {
        // Eviction of the last segment deletes the directory.
        let folder = self.shared.folder(prefix);
        create_private_folder(&folder)?;
        let path = folder.join(format!("{:016x}-{:06}.rows", self.writer_id, self.segment_count));
        self.segment_count += 1;
        let file = private_file_options().read(true).write(true).create_new(true).open(&path)?;
        let file = Arc::new(file);
        let segment = index.add_segment(Arc::clone(&file), path);
        Ok(OpenSegment { index, segment, file, bytes: 0 })
    }
}

impl OpenSegment {
    /// Appends rows to the segment. Returns the number of written bytes.
    fn append(&mut self, rows: Vec<CachedRow>) -> io::Result<u64> {
        let mut buffer = if self.bytes == 0 { MAGIC.to_vec() } else { Vec::new() };
        let mut locations = Vec::new();
        for (row, bytes) in rows {
            let Ok(length) = u32::try_from(bytes.len()) else { continue };
            let offset = self.bytes + buffer.len() as u64;
            locations.push((row, RowLocation { segment: self.segment, length, offset }));
            buffer.extend(row.to_le_bytes());
            buffer.extend(length.to_le_bytes());
            buffer.extend(xxh3_64_with_seed(&bytes, row).to_le_bytes());
            buffer.extend_from_slice(&bytes);
        }
        let written = self.file.write_all_at(&buffer, self.bytes);
        if written.is_err() {
            // Remove the bytes of an incomplete write. If this fails too, the next write overwrites them.
            let _ = self.file.set_len(self.bytes);
        }
        written?;
        self.bytes += buffer.len() as u64;
        self.index.add_rows(locations);
        Ok(buffer.len() as u64)
    }
}
