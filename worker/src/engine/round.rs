//! Puts the rows of a round together and makes of them what each stream gets in each of its steps.
//!
//! A worker that has a lease of one stream's part of a round computes the round for all streams: which rows make a step
//! depends on all of them.

mod cache;
mod columns;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ListArray, UInt32Array};
use arrow::datatypes::SchemaRef;
use feedline_data::coordinated::{CoordinatedStep, deal_buckets, deal_evenly, pack_rows};
use feedline_data::order::RowRef;
use feedline_data::pipeline::{BucketByLength, Longer, OnError, OperatorKind, Pack, PadTo, Pipeline, infer};
use feedline_data::schema::Schema;
use feedline_proto::batch::{BatchEncoder, output_schema};
use feedline_proto::services::PieceHeader;

pub(super) use self::cache::RoundCache;
use self::columns::{Filler, join, lengths, packed_columns};
use super::assemble::failures;
use super::chunk::WorkChunk;
use super::group::{FinishedPiece, check_failures, describe_row};
use super::job::JobContext;
use super::slab::SlabPool;
use super::trace::QueuedRows;

/// How a coordinated job makes its batches.
pub(crate) struct Coordination {
    way: Way,
    /// Columns before it.
    input: SchemaRef,
}

enum Way {
    Bucket(BucketByLength),
    Pack(Pack),
}

impl Coordination {
    /// That of a pipeline whose source has these columns, with the columns that it delivers; `None` where consumers take
    /// batches each for itself.
    pub(super) fn of(pipeline: &Pipeline, source: &Schema) -> Result<Option<(Self, Schema)>, String> {
        let way = match pipeline.operators.last().map(|operator| &operator.kind) {
            Some(OperatorKind::BucketByLength(p)) => Way::Bucket(p.clone()),
            Some(OperatorKind::Pack(p)) => Way::Pack(p.clone()),
            _ => return Ok(None),
        };
        let mut schemas = infer(pipeline, source).map_err(|error| error.to_string())?;
        let output = schemas.pop().unwrap_or_default();
        let input = schemas.pop().unwrap_or_default();
        Ok(Some((Self { way, input: output_schema(&input) }, output)))
    }

    fn columns(&self) -> &[String] {
        match &self.way {
            Way::Bucket(p) => &p.columns,
            Way::Pack(p) => &p.columns,
        }
    }

    /// The longest list that is taken, and what is said of a longer one.
    fn longest(&self) -> Option<(u32, &'static str)> {
        match &self.way {
            Way::Bucket(p) => {
                let fix = "the longest bucket's; truncate it before, or give batch_sizes one more number";
                p.longest().map(|longest| (longest, fix))
            }
            Way::Pack(p) if p.longer == Longer::Fail => {
                Some((p.length, "a packed row's; write `longer: truncate`, or pack into longer rows"))
            }
            Way::Pack(_) => None,
        }
    }
}

/// The rows of a round that are left behind its operators.
struct Rows {
    columns: Vec<(String, ArrayRef)>,
    /// Place of each in the round.
    places: Vec<usize>,
    /// Elements in each of the columns that decide, row by row.
    lengths: Vec<u32>,
}

/// One step with the rows that each stream gets: a batch's row is one or, where they are packed, several.
struct Dealt {
    bucket: usize,
    streams: Vec<Vec<Vec<u32>>>,
}

/// What each stream gets, as its pieces in order.
pub(super) type RoundOutput = Vec<Vec<FinishedPiece>>;

/// Makes the steps of a round.
///
/// # Errors
/// One sentence: under `on_error: fail` the first row that failed.
pub(super) fn finish_round(
    job: &JobContext,
    slabs: &Arc<SlabPool>,
    rows: &[RowRef],
    read_failures: &BTreeMap<usize, (Option<u64>, String)>,
    chunks: Vec<WorkChunk>,
) -> Result<RoundOutput, String> {
    let Some(coordination) = &job.coordination else {
        return Err("the job has no rounds; please report this".to_owned());
    };
    let mut failed = failures(&chunks, read_failures);
    check_failures(job, rows, &failed)?;
    let mut left = gather(coordination, &chunks)?;
    drop(chunks);
    settle_longer(job, coordination, &mut left, &mut failed);
    check_failures(job, rows, &failed)?;
    let dealt = deal(coordination, &left, job.details.layout.streams);
    let mut pieces = Pieces::new(job, coordination, slabs, &left)?.make(rows, &dealt)?;
    if let Some(last) = pieces.first_mut().and_then(|own| own.last_mut()) {
        let described =
            failed.iter().map(|(place, (offset, why))| describe_row(job, &rows[*place], *offset, why));
        last.header.skipped = described.collect();
        let mut is_left = vec![false; rows.len()];
        left.places.iter().for_each(|&place| is_left[place] = true);
        let removed = rows.iter().zip(is_left).filter(|(_, left)| !left).map(|(row, _)| row.row_id);
        last.header.row_ids.get_or_insert_default().extend(removed);
    }
    let all = || pieces.iter().flatten();
    let bytes = all().map(|piece| piece.data.len()).sum();
    job.note_tail(rows.len(), bytes);
    job.batch_counters.add_rows(rows.len(), all().map(|piece| piece.header.rows as usize).sum());
    Ok(pieces)
}

fn gather(coordination: &Coordination, chunks: &[WorkChunk]) -> Result<Rows, String> {
    let place = |work: &WorkChunk| {
        let start = work.start;
        work.chunk.origins.iter().map(move |origin| start + *origin as usize).collect::<Vec<_>>()
    };
    let places: Vec<usize> = chunks.iter().flat_map(place).collect();
    let mut columns = Vec::with_capacity(coordination.input.fields().len());
    for field in coordination.input.fields() {
        columns.push((field.name().clone(), join(chunks, field)?));
    }
    let lengths = lengths(&columns, coordination.columns())?;
    Ok(Rows { columns, places, lengths })
}

/// Rows that are longer than what takes them fail: they leave, or go on without their elements, as `on_error` says.
fn settle_longer(
    job: &JobContext,
    coordination: &Coordination,
    left: &mut Rows,
    failed: &mut BTreeMap<usize, (Option<u64>, String)>,
) {
    let names = coordination.columns();
    if let Way::Pack(Pack { longer: Longer::Truncate, length, .. }) = &coordination.way {
        left.lengths.iter_mut().for_each(|own| *own = (*own).min(*length));
    }
    let Some((longest, fix)) = coordination.longest() else { return };
    let mut keep = vec![true; left.places.len()];
    for (row, lengths) in left.lengths.chunks_mut(names.len()).enumerate() {
        let Some(column) = lengths.iter().position(|&length| length > longest) else { continue };
        let reason = format!(
            "column `{}` has {} elements, more than {longest}, {fix}",
            names[column], lengths[column]
        );
        failed.entry(left.places[row]).or_insert((None, reason));
        lengths.fill(0);
        keep[row] = job.on_error() != OnError::Skip;
    }
    if keep.iter().all(|&keep| keep) {
        return;
    }
    let stay = UInt32Array::from_iter_values((0..).zip(&keep).filter(|(_, keep)| **keep).map(|(row, _)| row));
    for (_, column) in &mut left.columns {
        *column = arrow::compute::take(column, &stay, None).expect("the rows are those of the column");
    }
    left.places = stay.values().iter().map(|&row| left.places[row as usize]).collect();
    let width = names.len();
    let of = |&row: &u32| left.lengths[row as usize * width..][..width].to_vec();
    left.lengths = stay.values().iter().flat_map(of).collect();
}

/// Which rows come in which step. A round of which nothing is left is one step without rows.
fn deal(coordination: &Coordination, left: &Rows, streams: u32) -> Vec<Dealt> {
    let width = coordination.columns().len();
    let (steps, packed): (Vec<CoordinatedStep>, Option<Vec<Vec<u32>>>) = match &coordination.way {
        Way::Bucket(p) => {
            let longest = |lengths: &[u32]| lengths.iter().copied().max().unwrap_or(0);
            let lengths: Vec<u32> = left.lengths.chunks(width).map(longest).collect();
            (deal_buckets(&lengths, &p.boundaries, &p.sizes(), streams), None)
        }
        Way::Pack(p) => {
            let packed = pack_rows(&left.lengths, width, p.length);
            (deal_evenly(packed.len() as u32, p.size, streams), Some(packed))
        }
    };
    let rows_of = |row: u32| match &packed {
        Some(packed) => packed[row as usize].clone(),
        None => vec![row],
    };
    let dealt = |step: CoordinatedStep| Dealt {
        bucket: step.bucket,
        streams: step.streams.into_iter().map(|rows| rows.into_iter().map(rows_of).collect()).collect(),
    };
    let mut dealt: Vec<Dealt> = steps.into_iter().map(dealt).collect();
    if dealt.is_empty() {
        dealt.push(Dealt { bucket: 0, streams: vec![Vec::new(); streams as usize] });
    }
    dealt
}

/// Makes the pieces of a round.
struct Pieces<'a> {
    job: &'a JobContext,
    coordination: &'a Coordination,
    slabs: &'a Arc<SlabPool>,
    left: &'a Rows,
    /// The columns that are filled up, in the order of their names in the pipeline.
    fillers: Vec<Filler<'a>>,
}

impl<'a> Pieces<'a> {
    fn new(
        job: &'a JobContext,
        coordination: &'a Coordination,
        slabs: &'a Arc<SlabPool>,
        left: &'a Rows,
    ) -> Result<Self, String> {
        let value = match &coordination.way {
            Way::Bucket(p) => p.value,
            Way::Pack(p) => p.value,
        };
        let names = coordination.columns();
        let mut fillers = Vec::with_capacity(names.len());
        for (place, name) in names.iter().enumerate() {
            let list = columns::list(&left.columns, name)?;
            let element = columns::element_type(&job.output_arrow, name)?;
            fillers.push(Filler::new(list, &left.lengths, (place, names.len()), (value, &element))?);
        }
        Ok(Self { job, coordination, slabs, left, fillers })
    }

    fn make(&self, rows: &[RowRef], dealt: &[Dealt]) -> Result<RoundOutput, String> {
        let mut streams: RoundOutput =
            dealt.first().map_or_else(Vec::new, |step| step.streams.iter().map(|_| Vec::new()).collect());
        let mut from = 0;
        for (number, step) in dealt.iter().enumerate() {
            let inputs = step.streams.iter().flatten().map(|row| row.len() as u32).sum::<u32>();
            let to = if number + 1 == dealt.len() { rows.len() as u32 } else { from + inputs };
            for (own, stream) in step.streams.iter().zip(&mut streams) {
                stream.push(self.piece(rows, step, own, from..to)?);
            }
            from = to;
        }
        Ok(streams)
    }

    fn piece(
        &self,
        rows: &[RowRef],
        step: &Dealt,
        own: &[Vec<u32>],
        offsets: std::ops::Range<u32>,
    ) -> Result<FinishedPiece, String> {
        let arrays = match &self.coordination.way {
            Way::Bucket(p) => self.bucketed(p, step, own)?,
            Way::Pack(p) => packed_columns(&self.fillers, own, p.length)?,
        };
        let bytes: usize = arrays
            .iter()
            .map(|array| array.to_data().get_slice_memory_size().unwrap_or_default() + 512)
            .sum();
        let (mut buffer, counted) = self.slabs.take(bytes);
        buffer.clear();
        let mut encoder = BatchEncoder::new(own.len() as u32);
        for array in &arrays {
            encoder.push_array(array, &mut buffer)?;
        }
        let batch = encoder.finish(&mut buffer);
        let id = |row: &u32| rows[self.left.places[*row as usize]].row_id;
        let header = PieceHeader {
            from: offsets.start,
            to: offsets.end,
            rows: own.len() as u32,
            // Of its offsets it needs as many as it has rows: other streams have the rest.
            kept: Some((offsets.start..offsets.start + own.len() as u32).collect()),
            row_ids: Some(own.iter().flatten().map(id).collect()),
            skipped: Vec::new(),
            batch,
        };
        let data = SlabPool::finish(buffer, counted);
        let waiting = QueuedRows::begin(&self.job.batch_counters, None, data.len() as u64);
        Ok(FinishedPiece { header, data, _waiting: waiting })
    }

    /// A batch's columns: lists filled to one length, which is the same for all streams.
    fn bucketed(&self, p: &BucketByLength, step: &Dealt, own: &[Vec<u32>]) -> Result<Vec<ArrayRef>, String> {
        let of_step: Vec<u32> = step.streams.iter().flatten().flatten().copied().collect();
        let own: Vec<u32> = own.iter().flatten().copied().collect();
        let picked = UInt32Array::from(own.clone());
        let mut arrays = Vec::with_capacity(self.left.columns.len());
        for (name, column) in &self.left.columns {
            let filler = p.columns.iter().position(|filled| filled == name).map(|place| &self.fillers[place]);
            arrays.push(match filler {
                Some(filler) => {
                    let longest = of_step.iter().map(|&row| filler.length(row)).max().unwrap_or(0);
                    let length = match p.pad {
                        PadTo::None => None,
                        PadTo::Longest => Some(longest),
                        PadTo::Boundary => Some(p.boundaries.get(step.bucket).copied().unwrap_or(longest)),
                    };
                    let list: ListArray = filler.lists(&own, length)?;
                    Arc::new(list)
                }
                None => arrow::compute::take(column, &picked, None).map_err(|error| error.to_string())?,
            });
        }
        Ok(arrays)
    }
}

#[cfg(test)]
mod tests;
