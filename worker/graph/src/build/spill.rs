//! Temporary files of edges: one per bucket. A bucket that does not fit in memory is sorted in runs, which are then merged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::Write;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::bucket_map::BucketMap;
use super::edge_record::{BucketEdge, EdgeRecord, KeyBits, READ_MARGIN};
use super::run::lock;
use crate::error::GraphError;

/// Size of the reads of a bucket.
const READ_BYTES: usize = 1 << 20;
/// Smallest and largest size of a buffer.
const BUFFER_BYTES: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 18;

/// The temporary files of the edges of one relation.
pub(super) struct EdgeSpill<R> {
    map: BucketMap,
    buckets: Vec<Bucket>,
    record: PhantomData<R>,
}

struct Bucket {
    path: PathBuf,
    /// The first target.
    first_target: u32,
    bits: KeyBits,
    /// The size of a record.
    width: usize,
    /// `None` after the bucket is sorted, so that its disk space is free.
    file: Mutex<Option<BucketFile>>,
}

struct BucketFile {
    file: File,
    bytes: u64,
}

/// The buffers of one thread.
pub(super) struct SpillBuffers {
    buffers: Vec<Vec<u8>>,
    limit: usize,
}

impl<R: EdgeRecord> EdgeSpill<R> {
    /// Creates the files in a folder. `sources` is the number of source nodes.
    pub(super) fn create(folder: &Path, map: BucketMap, sources: u64) -> Result<Self, GraphError> {
        let mut buckets = Vec::with_capacity(map.len());
        for bucket in 0..map.len() {
            let targets = map.targets(bucket);
            let bits = KeyBits::of(targets.end - targets.start, sources);
            let path = folder.join(format!("edges-{bucket}"));
            let file = File::options().read(true).write(true).create_new(true).open(&path);
            let file = file.map_err(|error| GraphError::io("create", &path, &error))?;
            let file = Mutex::new(Some(BucketFile { file, bytes: 0 }));
            // The targets have 32 bits.
            let first_target = targets.start as u32;
            buckets.push(Bucket { path, first_target, bits, width: R::stored_bytes(bits), file });
        }
        Ok(Self { map, buckets, record: PhantomData })
    }

    /// The number of buckets.
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// The first target of a bucket.
    pub(super) fn first_target(&self, bucket: usize) -> u32 {
        self.buckets[bucket].first_target
    }

    /// Creates the buffers of a thread, which together have about `bytes`.
    pub(super) fn buffers(&self, bytes: u64) -> SpillBuffers {
        let limit = bytes / self.buckets.len() as u64;
        let limit = limit.clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end()) as usize;
        SpillBuffers { buffers: vec![Vec::new(); self.buckets.len()], limit }
    }

    /// Adds an edge, whose target is an id of the graph.
    pub(super) fn push(&self, buffers: &mut SpillBuffers, edge: BucketEdge) -> Result<(), GraphError> {
        let index = self.map.bucket(edge.target);
        let bucket = &self.buckets[index];
        let target = edge.target - bucket.first_target;
        let buffer = &mut buffers.buffers[index];
        R::new(&BucketEdge { target, ..edge }, bucket.bits).write(bucket.width, buffer);
        if buffer.len() < buffers.limit {
            return Ok(());
        }
        bucket.append(buffer)
    }

    /// Writes the rest of the edges of a thread.
    pub(super) fn flush(&self, buffers: SpillBuffers) -> Result<(), GraphError> {
        for (bucket, mut buffer) in self.buckets.iter().zip(buffers.buffers) {
            bucket.append(&mut buffer)?;
        }
        Ok(())
    }

    /// Sorts a bucket, and removes its file. Uses about `memory_bytes`.
    pub(super) fn sort(&self, bucket: usize, memory_bytes: u64) -> Result<SortedBucket<R>, GraphError> {
        let bucket = &self.buckets[bucket];
        let BucketFile { file, bytes } =
            lock(&bucket.file).take().expect("a bucket is sorted once, after all edges are pushed");
        let count = bytes / bucket.width as u64;
        let max_records = (memory_bytes / R::SORT_BYTES).clamp(1 << 10, 1 << 31);
        let source = RecordFile { file, path: bucket.path.clone(), width: bucket.width };
        let records = if count <= max_records {
            let records = source.sorted(0, count, bucket.bits)?;
            SortedRecords::Memory(records.into_iter())
        } else {
            SortedRecords::Runs(source.sort_runs(count, max_records, memory_bytes, bucket.bits)?)
        };
        std::fs::remove_file(&bucket.path).map_err(|error| GraphError::io("remove", &bucket.path, &error))?;
        Ok(SortedBucket { records, bits: bucket.bits })
    }
}

impl Bucket {
    /// Moves the contents of a buffer to the file.
    fn append(&self, buffer: &mut Vec<u8>) -> Result<(), GraphError> {
        if buffer.is_empty() {
            return Ok(());
        }
        let mut file = lock(&self.file);
        let file = file.as_mut().expect("edges are pushed before a bucket is sorted");
        file.file.write_all(buffer).map_err(|error| GraphError::io("write", &self.path, &error))?;
        file.bytes += buffer.len() as u64;
        buffer.clear();
        Ok(())
    }
}

/// The edges of a bucket in order.
pub(super) struct SortedBucket<R> {
    records: SortedRecords<R>,
    bits: KeyBits,
}

enum SortedRecords<R> {
    Memory(std::vec::IntoIter<R>),
    Runs(MergedRuns<R>),
}

impl<R: EdgeRecord> SortedBucket<R> {
    /// The number of edges, if all are in memory.
    pub(super) fn count_in_memory(&self) -> Option<usize> {
        match &self.records {
            SortedRecords::Memory(records) => Some(records.len()),
            SortedRecords::Runs(_) => None,
        }
    }

    /// Returns the next edge. Its target is counted from the first target of the bucket.
    pub(super) fn next(&mut self) -> Result<Option<BucketEdge>, GraphError> {
        let record = match &mut self.records {
            SortedRecords::Memory(records) => records.next(),
            SortedRecords::Runs(runs) => runs.next()?,
        };
        Ok(record.map(|record| record.edge(self.bits)))
    }
}

/// A file of records of one size.
struct RecordFile {
    file: File,
    path: PathBuf,
    width: usize,
}

impl RecordFile {
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), GraphError> {
        self.file.read_exact_at(bytes, offset).map_err(|error| GraphError::io("read", &self.path, &error))
    }

    /// Reads and sorts records.
    fn sorted<R: EdgeRecord>(&self, first: u64, count: u64, bits: KeyBits) -> Result<Vec<R>, GraphError> {
        let mut records = Vec::with_capacity(count as usize);
        let mut bytes = vec![0; READ_BYTES + READ_MARGIN];
        let (mut next, end) = (first, first + count);
        while next < end {
            let part = (end - next).min((READ_BYTES / self.width) as u64);
            self.read(&mut bytes[..part as usize * self.width], next * self.width as u64)?;
            let positions = (0..part as usize).map(|index| index * self.width);
            records.extend(positions.map(|position| R::read(&bytes[position..], self.width)));
            next += part;
        }
        R::sort(&mut records, bits);
        Ok(records)
    }

    /// Sorts the records in runs of `run_records`, each of which replaces the records that it consists of.
    fn sort_runs<R: EdgeRecord>(
        self,
        count: u64,
        run_records: u64,
        memory_bytes: u64,
        bits: KeyBits,
    ) -> Result<MergedRuns<R>, GraphError> {
        let width = self.width;
        let starts = (0..count).step_by(run_records as usize);
        let runs = starts.clone().count() as u64;
        for first in starts {
            let records: Vec<R> = self.sorted(first, run_records.min(count - first), bits)?;
            for (chunk, part) in records.chunks(READ_BYTES / width).enumerate() {
                let mut bytes = Vec::with_capacity(READ_BYTES + READ_MARGIN);
                part.iter().for_each(|record| record.write(width, &mut bytes));
                let offset = (first as usize + chunk * (READ_BYTES / width)) * width;
                let written = self.file.write_all_at(&bytes, offset as u64);
                written.map_err(|error| GraphError::io("write", &self.path, &error))?;
            }
        }
        let buffer = (memory_bytes / runs).clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end()) as usize;
        let reader = |first: u64| RunReader::new(first, run_records.min(count - first), buffer / width);
        MergedRuns::new(self, (0..count).step_by(run_records as usize).map(reader).collect())
    }
}

/// Reads records in order.
struct RunReader {
    /// The next record that is not in the buffer, and the end.
    next: u64,
    end: u64,
    buffer: Vec<u8>,
    /// The position in the buffer, and the end of its records.
    position: usize,
    filled: usize,
    buffer_records: u64,
}

impl RunReader {
    fn new(first: u64, count: u64, buffer_records: usize) -> Self {
        let buffer_records = buffer_records.max(1) as u64;
        Self { next: first, end: first + count, buffer: Vec::new(), position: 0, filled: 0, buffer_records }
    }

    fn next<R: EdgeRecord>(&mut self, file: &RecordFile) -> Result<Option<R>, GraphError> {
        if self.position == self.filled {
            let records = (self.end - self.next).min(self.buffer_records);
            if records == 0 {
                return Ok(None);
            }
            self.filled = records as usize * file.width;
            self.buffer.resize(self.filled + READ_MARGIN, 0);
            file.read(&mut self.buffer[..self.filled], self.next * file.width as u64)?;
            self.next += records;
            self.position = 0;
        }
        let record = R::read(&self.buffer[self.position..], file.width);
        self.position += file.width;
        Ok(Some(record))
    }
}

/// Merges sorted runs.
struct MergedRuns<R> {
    file: RecordFile,
    readers: Vec<RunReader>,
    heads: BinaryHeap<Reverse<(R, usize)>>,
}

impl<R: EdgeRecord> MergedRuns<R> {
    fn new(file: RecordFile, readers: Vec<RunReader>) -> Result<Self, GraphError> {
        let mut merged = Self { file, readers, heads: BinaryHeap::new() };
        for run in 0..merged.readers.len() {
            merged.advance(run)?;
        }
        Ok(merged)
    }

    /// Reads the next record of a run.
    fn advance(&mut self, run: usize) -> Result<(), GraphError> {
        if let Some(record) = self.readers[run].next(&self.file)? {
            self.heads.push(Reverse((record, run)));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<R>, GraphError> {
        let Some(Reverse((record, run))) = self.heads.pop() else { return Ok(None) };
        self.advance(run)?;
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::edge_record::{NarrowEdge, WideEdge};
    use super::*;

    /// Returns the edges of all buckets in order.
    fn sorted<R: EdgeRecord>(
        edges: &[(u32, u32)],
        buckets: usize,
        memory_bytes: u64,
    ) -> Vec<(u32, u32, u64)> {
        let folder = tempfile::tempdir().unwrap();
        let spill = EdgeSpill::<R>::create(folder.path(), BucketMap::new(100, buckets, &[]), 1_000).unwrap();
        let mut buffers = spill.buffers(0);
        for (row, &(target, source)) in edges.iter().enumerate() {
            let edge = BucketEdge { target, source, row: row as u64, ..BucketEdge::default() };
            spill.push(&mut buffers, edge).unwrap();
        }
        spill.flush(buffers).unwrap();
        let mut found = Vec::new();
        for bucket in 0..spill.len() {
            let mut sorted = spill.sort(bucket, memory_bytes).unwrap();
            while let Some(edge) = sorted.next().unwrap() {
                found.push((spill.first_target(bucket) + edge.target, edge.source, edge.row));
            }
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]

        #[test]
        fn edges_are_sorted_in_memory_and_in_runs(
            edges in prop::collection::vec((0_u32..100, 0_u32..1_000), 0..9_000), buckets in 1_usize..9, memory_bytes in 0_u64..400_000,
        ) {
            let mut wide: Vec<(u32, u32, u64)> =
                edges.iter().enumerate().map(|(row, &(target, source))| (target, source, row as u64)).collect();
            wide.sort_unstable();
            let narrow: Vec<(u32, u32, u64)> = wide.iter().map(|&(target, source, _)| (target, source, 0)).collect();
            prop_assert_eq!(sorted::<NarrowEdge>(&edges, buckets, memory_bytes), narrow);
            prop_assert_eq!(sorted::<WideEdge>(&edges, buckets, memory_bytes), wide);
        }
    }
}
