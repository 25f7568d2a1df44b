//! Steps of coordinated jobs: the rows of a round that form each step, and their distribution over the streams. A round is a
//! range of the epoch's rows that all streams share. Steps are pure functions of the row lengths and never span two rounds.

use std::collections::VecDeque;

/// Maximum number of open packed rows. Beyond the limit, the oldest packed row is closed, which bounds the search.
const MAX_OPEN_PACKED_ROWS: usize = 256;

/// One step of a round. All rows of a step are in one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoordinatedStep {
    /// The index of the bucket; 0 if the pipeline has no buckets.
    pub bucket: usize,
    /// The rows of each stream, as indexes in the round. Some streams receive no rows if the step has fewer rows than
    /// streams.
    pub streams: Vec<Vec<u32>>,
}

impl CoordinatedStep {
    /// Distributes the rows of a step evenly over the streams. The row counts of two streams differ by at most one.
    fn distribute(bucket: usize, rows: &[u32], streams: u32) -> Self {
        let (count, streams) = (rows.len(), streams as usize);
        let mut rest = rows;
        let mut distributed = Vec::with_capacity(streams);
        for stream in 0..streams {
            let (own, others) = rest.split_at(count / streams + usize::from(stream < count % streams));
            distributed.push(own.to_vec());
            rest = others;
        }
        Self { bucket, streams: distributed }
    }

    /// The total number of rows in all streams.
    pub fn rows(&self) -> u32 {
        self.streams.iter().map(|rows| rows.len() as u32).sum()
    }
}

/// Returns the bucket of a row: the first bucket whose boundary is at least the row's length. Rows longer than the last
/// boundary belong to an additional last bucket.
pub fn bucket_of(boundaries: &[u32], length: u32) -> usize {
    boundaries.partition_point(|&boundary| boundary < length)
}

/// Forms steps from rows of the given lengths. All rows of a step belong to one bucket. A bucket becomes a step when it has
/// `sizes[bucket]` rows for each stream. At the end, the remaining rows of a bucket move to the next non-empty bucket of
/// longer rows if they fill less than half a step and the rows of both buckets fit into one step. Otherwise, they form a
/// smaller step.
///
/// `sizes` has one number for each boundary, and one more if rows may be longer than the last boundary.
pub fn deal_buckets(
    lengths: &[u32],
    boundaries: &[u32],
    sizes: &[u32],
    streams: u32,
) -> Vec<CoordinatedStep> {
    let full = |bucket: usize| sizes[bucket] as usize * streams as usize;
    let mut steps = Vec::new();
    let mut buckets: Vec<Vec<u32>> = vec![Vec::new(); sizes.len()];
    for (row, &length) in (0..).zip(lengths) {
        let bucket = bucket_of(boundaries, length);
        buckets[bucket].push(row);
        if buckets[bucket].len() == full(bucket) {
            steps.push(CoordinatedStep::distribute(bucket, &std::mem::take(&mut buckets[bucket]), streams));
        }
    }
    for bucket in 0..buckets.len() {
        let rows = std::mem::take(&mut buckets[bucket]);
        if rows.is_empty() {
            continue;
        }
        if let Some(next) = (bucket + 1..buckets.len()).find(|&next| !buckets[next].is_empty())
            && 2 * rows.len() < full(bucket)
            && rows.len() + buckets[next].len() <= full(next)
        {
            buckets[next].extend(rows);
            buckets[next].sort_unstable();
        } else {
            steps.push(CoordinatedStep::distribute(bucket, &rows, streams));
        }
    }
    steps
}

/// Forms steps with a batch of `batch` rows for each stream. The last step distributes the remaining rows evenly.
pub fn deal_evenly(rows: u32, batch: u32, streams: u32) -> Vec<CoordinatedStep> {
    let all: Vec<u32> = (0..rows).collect();
    all.chunks(batch as usize * streams as usize)
        .map(|rows| CoordinatedStep::distribute(0, rows, streams))
        .collect()
}

/// Packs rows into packed rows of `length` elements by first fit: each row is added to the first open packed row with enough
/// space in every column. `lengths` has `columns` numbers for each row, each at most `length`. Returns the rows of each
/// packed row, in order.
pub fn pack_rows(lengths: &[u32], columns: usize, length: u32) -> Vec<Vec<u32>> {
    let mut packed: Vec<Vec<u32>> = Vec::new();
    let mut open: VecDeque<(usize, Vec<u32>)> = VecDeque::new();
    for (row, needed) in (0..).zip(lengths.chunks(columns.max(1))) {
        let fits =
            |(_, room): &(usize, Vec<u32>)| room.iter().zip(needed).all(|(room, needed)| needed <= room);
        let place = open.iter().position(fits).unwrap_or_else(|| {
            if open.len() == MAX_OPEN_PACKED_ROWS {
                open.pop_front();
            }
            open.push_back((packed.len(), vec![length; columns]));
            packed.push(Vec::new());
            open.len() - 1
        });
        let (target, room) = &mut open[place];
        packed[*target].push(row);
        room.iter_mut().zip(needed).for_each(|(room, needed)| *room -= needed);
        if room.contains(&0) {
            open.remove(place);
        }
    }
    packed
}

#[cfg(test)]
mod tests;
