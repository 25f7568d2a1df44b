//! The writer of a disk tier: one thread that appends rows to segments and evicts segments.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::folders::note_use;
use super::index::{DiskIndex, HEAD_BYTES, MAGIC, RowLocation, lock};
use super::shared::Shared;
use crate::cache::rows::{CachedRow, Prefix};

/// A segment is closed at this size, or at this share of the limit, since segments are evicted as a whole.
const SEGMENT_BYTES: u64 = 256 << 20;
const SEGMENT_PART: u64 = 64;
/// The smallest size at which a segment is closed, since each file has a cost.
const LEAST_SEGMENT_BYTES: u64 = 64 << 10;
/// The interval at which the use of the part is recorded, so that it is known even after a crash.
const NOTE: Duration = Duration::from_secs(3600);

pub(super) enum WriterCommand {
    Keep(Prefix, Vec<CachedRow>),
    Flush(oneshot::Sender<()>),
}

pub(super) struct SegmentWriter {
    pub(super) shared: Arc<Shared>,
    segment_bytes: u64,
    /// A number that is unique to this life of this worker.
    life: u64,
    /// The number of segments of this life so far.
    segments: u32,
    /// The open segments, at most one for each active prefix.
    pub(super) open: BTreeMap<Prefix, OpenSegment>,
    /// Whether the last write failed.
    has_failed: bool,
}

/// An open segment.
pub(super) struct OpenSegment {
    kept: Arc<DiskIndex>,
    segment: u32,
    file: Arc<File>,
    bytes: u64,
}

impl SegmentWriter {
    pub(super) fn new(shared: Arc<Shared>, limit_bytes: u64) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            shared,
            segment_bytes: (limit_bytes / SEGMENT_PART).clamp(LEAST_SEGMENT_BYTES, SEGMENT_BYTES),
            life: now.as_nanos() as u64 ^ u64::from(std::process::id()) << 40,
            segments: 0,
            open: BTreeMap::new(),
            has_failed: false,
        }
    }

    /// Runs until the last sender is dropped.
    pub(super) fn run(mut self, orders: &mpsc::Receiver<WriterCommand>) {
        let mut noted = Instant::now();
        loop {
            let order = orders.recv_timeout(NOTE);
            if noted.elapsed() >= NOTE {
                note_use(&self.shared.folder);
                noted = Instant::now();
            }
            match order {
                Ok(order) => self.on_order(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn on_order(&mut self, order: WriterCommand) {
        match order {
            WriterCommand::Flush(done) => drop(done.send(())),
            WriterCommand::Keep(prefix, rows) => {
                let bytes: u64 = rows.iter().map(|(_, bytes)| bytes.len() as u64).sum();
                if !self.shared.failed.load(Ordering::Relaxed) {
                    let result = self.keep(prefix, rows);
                    self.note(result);
                }
                self.shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
        }
    }

    /// After a failure no row is stored until the active jobs change, and a repeated failure is not logged again.
    fn note(&mut self, result: io::Result<()>) {
        let has_failed = std::mem::replace(&mut self.has_failed, result.is_err());
        if let Err(error) = result {
            self.shared.failed.store(true, Ordering::Relaxed);
            if !has_failed {
                let folder = self.shared.folder.display();
                tracing::warn!(%folder, %error, "the worker stops caching rows on disk");
            }
        }
    }

    /// Appends new rows, as far as the tier has capacity.
    fn keep(&mut self, prefix: Prefix, mut rows: Vec<CachedRow>) -> io::Result<()> {
        // All segments may have been evicted since the prefix was opened.
        let kept = match self.shared.kept(prefix) {
            Some(kept) => kept,
            None => self.shared.load(prefix)?,
        };
        kept.retain_missing(&mut rows);
        // Counts the header of a new segment.
        let beside = (HEAD_BYTES, MAGIC.len() as u64);
        let bytes = lock(&self.shared.room).admit(prefix, &mut rows, beside);
        if rows.is_empty() || !self.make_room(prefix, bytes)? {
            return Ok(());
        }
        let mut open = match self.open.remove(&prefix) {
            Some(open) if open.bytes < self.segment_bytes => open,
            _ => self.create(prefix, kept)?,
        };
        let written = open.append(rows);
        self.open.insert(prefix, open);
        lock(&self.shared.room).add(prefix, written?);
        Ok(())
    }

    fn create(&mut self, prefix: Prefix, kept: Arc<DiskIndex>) -> io::Result<OpenSegment> {
        // The folder is deleted with its last segment.
        let folder = self.shared.folder(prefix);
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{:016x}-{:06}.rows", self.life, self.segments));
        self.segments += 1;
        let file = Arc::new(File::options().read(true).write(true).create_new(true).open(&path)?);
        let segment = kept.add_segment(Arc::clone(&file), path);
        Ok(OpenSegment { kept, segment, file, bytes: 0 })
    }
}

impl OpenSegment {
    /// Appends rows to the open segment. Returns the number of added bytes.
    fn append(&mut self, rows: Vec<CachedRow>) -> io::Result<u64> {
        let mut buffer = if self.bytes == 0 { MAGIC.to_vec() } else { Vec::new() };
        let mut places = Vec::new();
        for (row, bytes) in rows {
            let Ok(length) = u32::try_from(bytes.len()) else { continue };
            let offset = self.bytes + buffer.len() as u64;
            places.push((row, RowLocation { segment: self.segment, length, offset }));
            buffer.extend(row.to_le_bytes());
            buffer.extend(length.to_le_bytes());
            buffer.extend(xxh3_64_with_seed(&bytes, row).to_le_bytes());
            buffer.extend_from_slice(&bytes);
        }
        let written = self.file.write_all_at(&buffer, self.bytes);
        if written.is_err() {
            // The segment may contain bytes of the failed write that are not counted. If truncation fails as well,
            // the next rows overwrite them.
            let _ = self.file.set_len(self.bytes);
        }
        written?;
        self.bytes += buffer.len() as u64;
        self.kept.add_rows(places);
        Ok(buffer.len() as u64)
    }
}
