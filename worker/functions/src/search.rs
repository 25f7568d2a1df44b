//! Finds the rows that make calls fail, by repeatedly halving failed ranges.

use std::ops::Range;

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallOutcome<P> {
    /// The results of the rows.
    Done(P),
    /// A row made the call fail. With `retry`, the failure may be sporadic, such as a killed process, so the call is repeated
    /// once before the range is divided.
    Failed { reason: String, retry: bool },
}

/// Results with their ranges of rows in order, and failed rows with the reason.
pub(crate) type CallResults<P> = (Vec<(Range<usize>, P)>, Vec<(usize, String)>);

/// Calls `call` with ranges, and with parts of failed ranges, until each row has a result or fails on its own.
///
/// A row is reported as failed only after a call with this row alone, or two calls if the failure may be sporadic. With
/// `first_only`, the search stops at the first failed row.
pub(crate) fn find_failing_rows<P, E>(
    ranges: impl IntoIterator<Item = Range<usize>>,
    first_only: bool,
    mut call: impl FnMut(Range<usize>) -> Result<CallOutcome<P>, E>,
) -> Result<CallResults<P>, E> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for whole in ranges {
        let mut open = vec![whole.clone()];
        while let Some(range) = open.pop() {
            let mut outcome = call(range.clone())?;
            let is_retryable = range == whole || range.len() == 1;
            if is_retryable && matches!(outcome, CallOutcome::Failed { retry: true, .. }) {
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
        fn only_bad_rows_fail_and_all_others_have_results_in_order(
            rows in 1usize..60,
            bad in prop::collection::btree_set(0usize..60, 0..12),
            size in 1usize..20,
            retry: bool,
            first_only: bool,
        ) {
            let bad: BTreeSet<usize> = bad.into_iter().filter(|row| *row < rows).collect();
            let ranges = (0..rows).step_by(size).map(|start| start..(start + size).min(rows));
            let mut calls = 0;
            let found = find_failing_rows(ranges, first_only, |range: Range<usize>| {
                calls += 1;
                let at_fault = range.clone().find(|row| bad.contains(row));
                Ok::<_, Infallible>(match at_fault {
                    Some(row) => CallOutcome::Failed { reason: format!("row {row}"), retry },
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
    fn a_sporadic_failure_is_retried_without_losing_rows() {
        let mut calls = 0;
        let found = find_failing_rows(std::iter::once(0..8), false, |range: Range<usize>| {
            calls += 1;
            Ok::<_, Infallible>(match calls {
                1 => CallOutcome::Failed { reason: "killed".to_owned(), retry: true },
                _ => CallOutcome::Done(range.len()),
            })
        });
        assert_eq!((found.unwrap(), calls), ((vec![(0..8, 8)], Vec::new()), 2));
    }
}
