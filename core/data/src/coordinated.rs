//! Rounds of coordinated jobs: which rows make a step, and which of them each stream gets. A round is a range of the
//! epoch's rows that all streams share; nothing of it is carried into the next one. Pure functions of the rows' lengths.

use std::collections::VecDeque;

/// Packed rows that are open at a time. Where one more is opened the oldest is closed, which bounds the search.
const OPEN_ROWS: usize = 256;

/// One step of a round: what each stream gets in it, as places among the rows that were dealt. All are of one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoordinatedStep {
    /// The bucket; 0 where there are none.
    pub bucket: usize,
    /// For each stream, its rows in order. A stream may get none in a step that has fewer rows than streams.
    pub streams: Vec<Vec<u32>>,
}

impl CoordinatedStep {
    /// The rows of a step, dealt so that no stream gets more than one row more than another.
    fn evenly(bucket: usize, rows: &[u32], streams: u32) -> Self {
        let (count, streams) = (rows.len(), streams as usize);
        let mut rest = rows;
        let mut dealt = Vec::with_capacity(streams);
        for stream in 0..streams {
            let (own, others) = rest.split_at(count / streams + usize::from(stream < count % streams));
            dealt.push(own.to_vec());
            rest = others;
        }
        Self { bucket, streams: dealt }
    }

    /// Rows of all streams.
    pub fn rows(&self) -> u32 {
        self.streams.iter().map(|rows| rows.len() as u32).sum()
    }
}

/// The bucket of a row: the first whose boundary, the longest length in it, the row does not pass. The bucket behind the
/// last boundary takes all longer rows.
pub fn bucket_of(boundaries: &[u32], length: u32) -> usize {
    boundaries.partition_point(|&boundary| boundary < length)
}

/// Deals rows of these lengths into steps of one bucket each. A bucket becomes a step as soon as it has a batch of
/// `sizes[bucket]` rows for each stream. At the end what is left in a bucket moves into the next longer one if it is
/// less than half a step and fits there, and comes as a smaller step else.
///
/// `sizes` has a number for each boundary, and one more where rows may be longer than the last.
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
            steps.push(CoordinatedStep::evenly(bucket, &std::mem::take(&mut buckets[bucket]), streams));
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
            steps.push(CoordinatedStep::evenly(bucket, &rows, streams));
        }
    }
    steps
}

/// Deals so many rows into steps of a batch for each stream; the last step has what is left, evenly.
pub fn deal_evenly(rows: u32, batch: u32, streams: u32) -> Vec<CoordinatedStep> {
    let all: Vec<u32> = (0..rows).collect();
    all.chunks(batch as usize * streams as usize)
        .map(|rows| CoordinatedStep::evenly(0, rows, streams))
        .collect()
}

/// Packs rows into rows of `length` elements: each goes into the first open packed row that has room for it in every
/// column. `lengths` has `columns` numbers for each row, none above `length`. Gives the rows of each packed row, in order.
pub fn pack_rows(lengths: &[u32], columns: usize, length: u32) -> Vec<Vec<u32>> {
    let mut packed: Vec<Vec<u32>> = Vec::new();
    let mut open: VecDeque<(usize, Vec<u32>)> = VecDeque::new();
    for (row, needed) in (0..).zip(lengths.chunks(columns.max(1))) {
        let fits =
            |(_, room): &(usize, Vec<u32>)| room.iter().zip(needed).all(|(room, needed)| needed <= room);
        let place = open.iter().position(fits).unwrap_or_else(|| {
            if open.len() == OPEN_ROWS {
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
