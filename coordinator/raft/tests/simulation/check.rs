//! The checks at the end of a run.

use std::collections::BTreeMap;

use feedline_data::consumer::RunKind;
use feedline_data::pipeline::{OrderMode, Remainder};

use super::application::Entry;
use super::scenario::JobData;

/// Checks the entries of a whole run. `undisturbed` means that no consumer was restarted.
pub(crate) fn check_entries(data: &JobData, entries: &[Entry], undisturbed: bool) -> Result<(), String> {
    check_input_rows(data, entries)?;
    check_kept_rows(data, entries)?;
    if data.spec.pipeline.order == OrderMode::Relaxed {
        return Ok(());
    }
    for stream in 0..data.layout.streams {
        check_stream(data, entries, stream)?;
    }
    if undisturbed { check_steps(data, entries) } else { Ok(()) }
}

/// Checks that a job that ended for a legal reason delivered no row twice.
pub(crate) fn check_no_repetitions(data: &JobData, entries: &[Entry]) -> Result<(), String> {
    let repeated = count_input_rows(data, entries).into_iter().find(|(_, count)| *count > 1);
    repeated
        .map_or(Ok(()), |((epoch, row), count)| Err(format!("row {row} of epoch {epoch} came {count} times")))
}

/// Checks that a job that ended because it had no rows has an epoch without batches.
pub(crate) fn check_empty(data: &JobData) -> Result<(), String> {
    let least = if data.layout.remainder == Remainder::Emit { 1 } else { data.layout.batch_rows as usize };
    let has_batch = |epoch| {
        (0..data.layout.streams).any(|stream| {
            data.stream_rows(epoch, stream).into_iter().filter(|row| data.keeps(*row)).count() >= least
        })
    };
    match (0..data.spec.epochs).all(has_batch) {
        true => Err("a job with batches in each epoch ended because it had no rows".to_owned()),
        false => Ok(()),
    }
}

/// The number of times that each row of an epoch came.
fn count_input_rows(data: &JobData, entries: &[Entry]) -> BTreeMap<(u32, u64), u32> {
    let mut counts: BTreeMap<(u32, u64), u32> = BTreeMap::new();
    for portion in entries.iter().flat_map(|entry| &entry.portions) {
        for row in data.rows(portion.split, portion.input.start, portion.input.end) {
            *counts.entry((portion.split.epoch, *row)).or_default() += 1;
        }
    }
    counts
}

/// Checks that every input row of every epoch is accounted for exactly once.
fn check_input_rows(data: &JobData, entries: &[Entry]) -> Result<(), String> {
    let mut counts = count_input_rows(data, entries);
    for epoch in 0..data.spec.epochs {
        for row in data.epoch_rows(epoch) {
            match counts.remove(&(epoch, row)) {
                Some(1) => {}
                count => return Err(format!("row {row} of epoch {epoch} came {} times", count.unwrap_or(0))),
            }
        }
    }
    if counts.is_empty() { Ok(()) } else { Err(format!("rows that no split has: {counts:?}")) }
}

/// Checks that each row that passes the filter was delivered or dropped exactly once, and no other row.
fn check_kept_rows(data: &JobData, entries: &[Entry]) -> Result<(), String> {
    let mut got: Vec<u64> = entries.iter().flat_map(Entry::rows).collect();
    let mut wanted: Vec<u64> = (0..data.spec.epochs).flat_map(|epoch| data.epoch_rows(epoch)).collect();
    wanted.retain(|row| data.keeps(*row));
    got.sort_unstable();
    wanted.sort_unstable();
    if got != wanted {
        return Err(format!("delivered {} rows, wanted {}", got.len(), wanted.len()));
    }
    let size = data.layout.batch_rows as usize;
    let large = entries.iter().find(|entry| entry.rows().len() > size);
    large.map_or(Ok(()), |entry| Err(format!("a batch of {} rows: {entry:?}", entry.rows().len())))
}

/// Checks that a stream's batches equal the batches that the layout determines.
fn check_stream(data: &JobData, entries: &[Entry], stream: u32) -> Result<(), String> {
    let size = data.layout.batch_rows as usize;
    let kept = |epoch| -> Vec<u64> {
        data.stream_rows(epoch, stream).into_iter().filter(|row| data.keeps(*row)).collect()
    };
    let runs: Vec<Vec<u64>> = if data.layout.remainder == Remainder::Carry {
        vec![(0..data.spec.epochs).flat_map(kept).collect()]
    } else {
        (0..data.spec.epochs).map(kept).collect()
    };
    let mut wanted: Vec<Vec<u64>> = Vec::new();
    for run in runs {
        let whole = |batch: &&[u64]| data.layout.remainder != Remainder::Drop || batch.len() == size;
        wanted.extend(run.chunks(size).filter(whole).map(<[u64]>::to_vec));
    }
    let of_stream = |entry: &&Entry| entry.stream == stream && entry.kind == RunKind::Batch;
    let got: Vec<Vec<u64>> =
        entries.iter().filter(of_stream).map(Entry::rows).filter(|rows| !rows.is_empty()).collect();
    if got != wanted {
        let place = got.iter().zip(&wanted).position(|(got, wanted)| got != wanted);
        return Err(format!(
            "stream {stream} has {} batches, wanted {}; the first that differs is {place:?}",
            got.len(),
            wanted.len()
        ));
    }
    Ok(())
}

/// Checks that all streams have the same number of steps, including empty steps.
fn check_steps(data: &JobData, entries: &[Entry]) -> Result<(), String> {
    let Some(steps) = data.layout.steps() else { return Ok(()) };
    for stream in 0..data.layout.streams {
        let got =
            entries.iter().filter(|entry| entry.stream == stream && entry.kind == RunKind::Batch).count()
                as u64;
        let wanted = steps * u64::from(data.spec.epochs);
        if got != wanted {
            return Err(format!("stream {stream} took {got} steps, wanted {wanted}"));
        }
    }
    Ok(())
}
