//! Checks the number of rows against the batches, the consumers and the shuffle window.

use feedline_data::pipeline::{Pipeline, PipelinePart, Remainder};

use super::checks::Check;
use super::finding::Finding;
use super::sampling::RowCount;
use crate::size::format_count;

/// Factor by which an estimated number of rows may be wrong.
const ESTIMATE_ERROR: u64 = 2;

/// Checks the number of rows of the dataset. `block_rows` is the mean number of rows of a block.
pub(crate) fn check(pipeline: &Pipeline, count: RowCount, block_rows: u64, consumers: u32) -> Vec<Finding> {
    if pipeline.source.is_unbounded() {
        return no_records(count);
    }
    let mut findings = Vec::new();
    let last = pipeline.operators.len().saturating_sub(1);
    let (batch, consumers) = (u64::from(pipeline.batch_size()), u64::from(consumers));
    // An estimate must not cause a finding that the exact number contradicts.
    let rows = if count.is_exact { count.rows } else { count.rows.saturating_mul(ESTIMATE_ERROR) };
    let epoch_rows = rows.saturating_mul(u64::from(pipeline.repeat_count()));
    let shown = format!("{}{}", if count.is_exact { "" } else { "about " }, format_count(count.rows, "row"));
    if rows == 0 {
        return vec![Finding::new(Check::NoRows, "the dataset has no rows: check `source.url`")];
    }
    if epoch_rows < consumers {
        let message = format!(
            "the dataset has {shown}, but the job has {}: use at most one consumer per row",
            format_count(consumers, "consumer")
        );
        findings.push(Finding::new(Check::FewRows, message));
    } else if epoch_rows < batch && pipeline.remainder() == Remainder::Drop {
        let message = format!(
            "the dataset has {shown}, fewer than one batch of {batch}, and `remainder: drop` drops all of them: use a smaller batch"
        );
        findings.push(Finding::new(Check::FewRows, message).in_part(PipelinePart::Operator(last)));
    } else if epoch_rows < batch.saturating_mul(consumers) {
        let for_consumers = match consumers {
            1 => String::new(),
            _ => format!(" for each of {consumers} consumers"),
        };
        let message = format!(
            "the dataset has {shown}, fewer than one batch of {batch}{for_consumers}: use a smaller batch, or `repeat`"
        );
        findings.push(Finding::new(Check::LargeBatch, message).in_part(PipelinePart::Operator(last)));
    }
    findings.extend(check_window(pipeline.shuffle.window, count.rows, block_rows));
    findings
}

/// The records that the topics retain say nothing about the number of rows of an unbounded job.
fn no_records(count: RowCount) -> Vec<Finding> {
    let message = "the topics have no records yet, so the columns and operators were not checked";
    (count.rows == 0).then(|| Finding::new(Check::NoRecords, message)).into_iter().collect()
}

/// Reports a window that mixes only rows of one block, which are adjacent in storage order.
fn check_window(window: u64, rows: u64, block_rows: u64) -> Option<Finding> {
    if window == 0 || window >= rows || window > block_rows {
        return None;
    }
    let message = format!(
        "the shuffle window of {} contains one block of the dataset, which has about {}, so a batch contains rows that are adjacent in \
         storage: use a window of several blocks, such as {}",
        format_count(window, "row"),
        format_count(block_rows, "row"),
        block_rows.saturating_mul(8).min(rows)
    );
    Some(Finding::new(Check::ShuffleWindow, message).in_part(PipelinePart::Key("shuffle")))
}

#[cfg(test)]
mod tests {
    use feedline_data::pipeline::Source;

    use super::*;

    fn names(window: u64, batch: &str, rows: u64, is_exact: bool, consumers: u32) -> Vec<&'static str> {
        let text = format!(
            "name: t\nsource: {{url: a, format: text}}\nshuffle: {{window: {window}}}\noperators:\n  - batch: {batch}\n"
        );
        let pipeline = Pipeline::from_yaml(&text, "t.yaml").unwrap();
        let found = check(&pipeline, RowCount { rows, is_exact }, 100, consumers);
        found.iter().map(|finding| finding.check.name()).collect()
    }

    #[test]
    fn rows_are_compared_with_batches_and_consumers() {
        assert!(names(0, "{size: 8}", 64, true, 8).is_empty());
        assert_eq!(names(0, "{size: 8}", 63, true, 8), ["large-batch"]);
        assert!(names(0, "{size: 8}", 63, false, 8).is_empty(), "an estimate has a tolerance");
        assert_eq!(names(0, "{size: 8}", 31, false, 8), ["large-batch"]);
        assert_eq!(names(0, "{size: 8}", 7, true, 8), ["few-rows"]);
        assert_eq!(names(0, "{size: 8, remainder: drop}", 7, true, 1), ["few-rows"]);
        assert_eq!(names(0, "{size: 8}", 0, true, 1), ["no-rows"]);
    }

    #[test]
    fn a_job_without_an_end_may_have_no_rows_yet() {
        let text = "name: t\nsource: {url: 'kafka://a:1', format: kafka, topics: t, until: none}\noperators:\n  - batch: {size: 8}\n";
        let pipeline = Pipeline::from_yaml(text, "t.yaml").unwrap();
        let found = |rows| {
            let found = check(&pipeline, RowCount { rows, is_exact: true }, 100, 8);
            found.iter().map(|finding| finding.check.name()).collect::<Vec<_>>()
        };
        assert_eq!((found(0), found(1)), (vec!["no-records"], vec![]));
    }

    #[test]
    fn a_window_must_span_several_blocks() {
        assert!(names(0, "{size: 8}", 10_000, true, 1).is_empty(), "storage order is intended");
        assert_eq!(names(100, "{size: 8}", 10_000, true, 1), ["shuffle-window"]);
        assert!(names(101, "{size: 8}", 10_000, true, 1).is_empty());
        assert!(names(100, "{size: 8}", 100, true, 1).is_empty(), "the window contains all rows");
    }

    #[test]
    fn the_sentence_names_the_numbers() {
        let pipeline = Pipeline::builder("t").source(Source::text("a")).batch(64).build().unwrap();
        let found = check(&pipeline, RowCount { rows: 10, is_exact: false }, 5, 4);
        assert_eq!(
            found[0].message,
            "the dataset has about 10 rows, fewer than one batch of 64 for each of 4 consumers: use a smaller batch, or `repeat`"
        );
        assert_eq!(found[0].part, Some(PipelinePart::Operator(0)));
    }
}
