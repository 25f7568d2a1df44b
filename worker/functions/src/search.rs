//! Which rows are at fault when calls fail: halves of a range are called, and their halves, down to single rows.

use std::ops::Range;

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallOutcome<P> {
    /// The rows' results.
    Done(P),
    /// Some row is at fault. `again`: it may have been chance, such as a process that was killed, so rows are called once
    /// more before they are divided.
    Failed { reason: String, again: bool },
}

/// Results by the rows that they belong to, in order, and rows that failed with the reason.
pub(crate) type CallResults<P> = (Vec<(Range<usize>, P)>, Vec<(usize, String)>);

/// Calls `call` with ranges, and with parts of those that fail, until each row has a result or is known to fail alone.
///
/// A row fails only where it was called by itself; where that may have been chance, twice. With `first_only` nothing is
/// called behind the first row that fails.
pub(crate) fn search<P, E>(
    ranges: impl IntoIterator<Item = Range<usize>>,
    first_only: bool,
    mut call: impl FnMut(Range<usize>) -> Result<CallOutcome<P>, E>,
) -> Result<CallResults<P>, E> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for whole in ranges {
        let mut open = vec![whole.clone()];
        while let Some(range) = open.pop() {
            let mut outcome = call(range.clone())?;
            let deserves_another = range == whole || range.len() == 1;
            if deserves_another && matches!(outcome, CallOutcome::Failed { again: true, .. }) {
                outcome = call(range.clone())?;
            }
            match outcome {
                CallOutcome::Done(results) => done.push((range, results)),
                CallOutcome::Failed { reason, .. } if range.len() <= 1 => {
                    failed.push((range.start, reason));
                    if first_only {
                        return Ok((done, failed));
                    }
                }
                CallOutcome::Failed { .. } => {
                    let middle = range.start + range.len() / 2;
                    open.push(middle..range.end);
                    open.push(range.start..middle);
                }
            }
        }
    }
    Ok((done, failed))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exactly_the_bad_rows_fail_and_all_others_have_results_in_order(
            rows in 1usize..60,
            bad in prop::collection::btree_set(0usize..60, 0..12),
            size in 1usize..20,
            again: bool,
            first_only: bool,
        ) {
            let bad: BTreeSet<usize> = bad.into_iter().filter(|row| *row < rows).collect();
            let ranges = (0..rows).step_by(size).map(|start| start..(start + size).min(rows));
            let mut calls = 0;
            let found = search(ranges, first_only, |range: Range<usize>| {
                calls += 1;
                let at_fault = range.clone().find(|row| bad.contains(row));
                Ok::<_, Infallible>(match at_fault {
                    Some(row) => CallOutcome::Failed { reason: format!("row {row}"), again },
                    None => CallOutcome::Done(range.collect::<Vec<_>>()),
                })
            });
            let (done, failed) = found.unwrap();
            let wanted: Vec<(usize, String)> = bad.iter().map(|row| (*row, format!("row {row}"))).collect();
            let wanted = if first_only { wanted.into_iter().take(1).collect() } else { wanted };
            prop_assert_eq!(&failed, &wanted);
            let end = if first_only { failed.first().map_or(rows, |(row, _)| *row) } else { rows };
            let good: Vec<usize> = (0..end).filter(|row| !bad.contains(row)).collect();
            prop_assert_eq!(done.iter().flat_map(|(range, _)| range.clone()).collect::<Vec<_>>(), good.clone());
            prop_assert_eq!(done.into_iter().flat_map(|(_, rows)| rows).collect::<Vec<_>>(), good);
            prop_assert!(calls <= 2 * (rows.div_ceil(size) + bad.len() * 2 * 7), "{} calls", calls);
        }
    }

    #[test]
    fn what_failed_by_chance_is_called_again_and_nothing_is_lost() {
        let mut calls = 0;
        let found = search(std::iter::once(0..8), false, |range: Range<usize>| {
            calls += 1;
            Ok::<_, Infallible>(match calls {
                1 => CallOutcome::Failed { reason: "killed".to_owned(), again: true },
                _ => CallOutcome::Done(range.len()),
            })
        });
        assert_eq!((found.unwrap(), calls), ((vec![(0..8, 8)], Vec::new()), 2));
    }
}
