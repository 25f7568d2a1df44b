//! The report of `feedline run`, as text or as JSON.

use std::fmt;

use feedline_client::audit::AuditReport;
use feedline_data::manifest::{DatasetSummary, Manifest, RoundedColumn, WidenedColumn};
use feedline_data::messages::{OperatorStats, ProcessCpu, StoreStats};
use serde::Serialize;

use crate::size::{format_bytes, format_count};
use crate::table;

/// Maximum number of skipped rows, and of unreadable parts, that a report lists.
pub(super) const MAX_LISTED: usize = 10;

/// The whole report. Field names are the keys of the JSON report.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct RunReport {
    /// Name of the job.
    pub(crate) job: String,
    /// Rows delivered.
    pub(crate) rows: u64,
    /// Batches delivered.
    pub(crate) batches: u64,
    /// Number of epochs that the delivered rows belong to.
    pub(crate) epochs: u32,
    /// Time from the first request for a batch to the last batch.
    pub(crate) seconds: f64,
    /// `rows / seconds`.
    pub(crate) rows_per_s: f64,
    /// Rows per second, excluding the first two seconds after the first batch; `None` for shorter runs.
    pub(crate) steady_rows_per_s: Option<f64>,
    /// Bytes delivered.
    pub(crate) bytes: u64,
    /// Time that consumers waited for batches, summed over consumers.
    pub(crate) stall_seconds: f64,
    /// Time from receiving a batch to requesting the next batch, summed over consumers.
    pub(crate) step_seconds: f64,
    /// Time from the start of the process to the first request for a batch.
    pub(crate) setup_seconds: f64,
    /// Time from the start of the process to the first batch; `None` without a batch.
    pub(crate) first_batch_seconds: Option<f64>,
    /// Number of consumers.
    pub(crate) consumers: u32,
    /// Digest of each virtual consumer's batches in order; `None` with `--no-digest`.
    pub(crate) digest: Option<String>,
    /// Digest of all rows, independent of their order; `None` with `--no-digest`.
    pub(crate) content_digest: Option<String>,
    /// Result of the audit; `None` without `--audit`.
    pub(crate) audit: Option<AuditReport>,
    /// Skipped rows.
    pub(crate) skipped: SkippedRowsReport,
    /// Parts of the dataset that cannot be read.
    pub(crate) defects: UnreadablePartsReport,
    /// Columns of the data that differ from the delivered columns.
    pub(crate) columns: ColumnsReport,
    /// Operators in order, summed over workers.
    pub(crate) operators: Vec<OperatorReport>,
    /// Reads from the store, summed over workers.
    pub(crate) store: StoreSection,
    /// CPU time of each worker's process since its start. In embedded mode, this is the process of `feedline run`.
    pub(crate) worker_cpu: Vec<CpuReport>,
    /// Peak memory of the processes.
    pub(crate) peak_rss_bytes: PeakRss,
}

/// Columns of the data that differ from the delivered columns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ColumnsReport {
    /// Names of columns in the data that `source.features` does not contain.
    pub(crate) ignored: Vec<String>,
    /// Columns in which values of several types were converted without loss to a common type.
    pub(crate) widened: Vec<WidenedColumnReport>,
    /// Columns whose values are rounded.
    pub(crate) rounded: Vec<RoundedColumn>,
}

/// A column whose values were converted without loss to a wider type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct WidenedColumnReport {
    /// Name of the column.
    pub(crate) column: String,
    /// A type of values in the data.
    pub(crate) from: String,
    /// The type of the column.
    pub(crate) to: String,
}

impl From<&DatasetSummary> for ColumnsReport {
    fn from(dataset: &DatasetSummary) -> Self {
        let widened = |WidenedColumn { column, from, to }: &WidenedColumn| WidenedColumnReport {
            column: column.clone(),
            from: from.to_string(),
            to: to.to_string(),
        };
        Self {
            ignored: dataset.ignored.clone(),
            widened: dataset.widened.iter().map(widened).collect(),
            rounded: dataset.rounded.clone(),
        }
    }
}

impl ColumnsReport {
    /// Returns the lines of the text report, without columns that do not differ.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if !self.ignored.is_empty() {
            let names: Vec<&str> = self.ignored.iter().take(MAX_LISTED).map(String::as_str).collect();
            let count = format_count(self.ignored.len() as u64, "column");
            lines.push(("ignored", format!("{count}: {}{}", names.join(", "), and_more(self.ignored.len()))));
        }
        if !self.widened.is_empty() {
            let widened = |column: &WidenedColumnReport| {
                format!("{} from {} to {}", column.column, column.from, column.to)
            };
            let listed: Vec<String> = self.widened.iter().take(MAX_LISTED).map(widened).collect();
            lines.push(("widened", format!("{}{}", listed.join(", "), and_more(self.widened.len()))));
        }
        if !self.rounded.is_empty() {
            let rounded = |RoundedColumn { column, reason }: &RoundedColumn| format!("{column}: {reason}");
            let listed: Vec<String> = self.rounded.iter().take(MAX_LISTED).map(rounded).collect();
            lines.push(("rounded", format!("{}{}", listed.join(", "), and_more(self.rounded.len()))));
        }
        lines
    }
}

/// Describes the entries of a list above [`MAX_LISTED`].
fn and_more(count: usize) -> String {
    match count.saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    }
}

/// Rows that could not be processed and were skipped or replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SkippedRowsReport {
    /// Total number.
    pub(crate) count: u64,
    /// The first skipped rows.
    pub(crate) first: Vec<SkippedRowReport>,
}

/// A skipped row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SkippedRowReport {
    /// Row id.
    pub(crate) row: u64,
    /// URL of its shard.
    pub(crate) shard: String,
    /// Byte offset in the shard; row number in columnar formats.
    pub(crate) offset: u64,
    /// Reason for the failure.
    pub(crate) reason: String,
}

/// Defects of shards that make the rest of the shard unreadable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct UnreadablePartsReport {
    /// Total number.
    pub(crate) count: u64,
    /// The first defects.
    pub(crate) first: Vec<ShardDefect>,
}

/// A defect that makes the rest of a shard unreadable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ShardDefect {
    /// URL of the shard.
    pub(crate) shard: String,
    /// Byte offset in the shard.
    pub(crate) byte: u64,
    /// Description of the defect.
    pub(crate) reason: String,
    /// Bytes at the end of the shard that cannot be read.
    #[serde(rename = "left_out_bytes")]
    pub(crate) unreadable_bytes: u64,
    /// Size of the shard.
    pub(crate) shard_bytes: u64,
}

impl UnreadablePartsReport {
    /// Collects the defects of a manifest.
    pub(super) fn of(manifest: &Manifest) -> Self {
        let listed = manifest.defects().take(MAX_LISTED).map(|(shard, defect)| ShardDefect {
            shard: shard.object.url.clone(),
            byte: defect.offset,
            reason: defect.reason.clone(),
            unreadable_bytes: shard.unreadable_bytes(),
            shard_bytes: shard.object.size_bytes,
        });
        Self { count: manifest.defects().count() as u64, first: listed.collect() }
    }

    /// Returns the warning for standard error; `None` without defects.
    pub(super) fn warning(&self) -> Option<String> {
        let first = self.first.first()?;
        let others = match self.count {
            0 | 1 => String::new(),
            count => format!("; and {}: see the report", format_count(count - 1, "other defect")),
        };
        Some(format!("warning: {first}{others}"))
    }
}

impl fmt::Display for ShardDefect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shard, byte, reason, unreadable_bytes, shard_bytes } = self;
        write!(
            f,
            "{shard} at byte {byte}: {reason}; the rest of the shard, {unreadable_bytes} of {shard_bytes} bytes, is skipped"
        )
    }
}

/// Counters of an operator.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct OperatorReport {
    /// Name in the pipeline.
    pub(crate) name: String,
    /// Input rows.
    pub(crate) rows_in: u64,
    /// Output rows.
    pub(crate) rows_out: u64,
    /// Output bytes.
    pub(crate) bytes_out: u64,
    /// CPU time.
    pub(crate) cpu_seconds: f64,
    /// `rows_in / cpu_seconds`; `None` if no CPU time was measured.
    pub(crate) rows_per_cpu_second: Option<f64>,
    /// Time that rows spent waiting for a core, for input, or while an operator waited for I/O or a timer.
    pub(crate) wait_seconds: f64,
    /// Input bytes.
    pub(crate) bytes_in: u64,
    /// Total time of all executions. Divided by the duration of the run, it is the mean number of concurrent executions.
    pub(crate) busy_seconds: f64,
    /// Time that rows waited for a core or for input.
    pub(crate) wait_input_seconds: f64,
    /// Time that output rows waited for the next operator.
    pub(crate) wait_output_seconds: f64,
    /// Time that executions waited without using the CPU.
    pub(crate) latency_seconds: f64,
    /// Number of concurrent executions, if the pipeline pins it.
    pub(crate) parallelism: Option<u32>,
}

impl From<&OperatorStats> for OperatorReport {
    fn from(stats: &OperatorStats) -> Self {
        let cpu_seconds = stats.cpu_ns as f64 / 1e9;
        Self {
            name: stats.name.clone(),
            rows_in: stats.rows_in,
            rows_out: stats.rows_out,
            bytes_out: stats.bytes_out,
            cpu_seconds,
            rows_per_cpu_second: (stats.cpu_ns > 0).then(|| stats.rows_in as f64 / cpu_seconds),
            wait_seconds: stats.wait_ns() as f64 / 1e9,
            bytes_in: stats.bytes_in,
            busy_seconds: stats.busy_ns as f64 / 1e9,
            wait_input_seconds: stats.wait_input_ns as f64 / 1e9,
            wait_output_seconds: stats.wait_output_ns as f64 / 1e9,
            latency_seconds: stats.latency_ns as f64 / 1e9,
            parallelism: stats.parallelism,
        }
    }
}

/// Reads from the store.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct StoreSection {
    /// Number of requests.
    pub(crate) requests: u64,
    /// Number of bytes.
    pub(crate) bytes: u64,
    /// Time from a request to its last byte, summed over requests.
    pub(crate) wait_seconds: f64,
    /// Number of distinct shards that a worker read, summed over workers.
    pub(crate) distinct_shards: u64,
    /// Total size of these shards.
    pub(crate) distinct_shard_bytes: u64,
}

impl From<&StoreStats> for StoreSection {
    fn from(stats: &StoreStats) -> Self {
        Self {
            requests: stats.requests,
            bytes: stats.bytes,
            wait_seconds: stats.wait_ns as f64 / 1e9,
            distinct_shards: stats.distinct_shards,
            distinct_shard_bytes: stats.distinct_shard_bytes,
        }
    }
}

/// CPU time of a worker's process since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct CpuReport {
    /// CPU time of all threads.
    pub(crate) process_seconds: f64,
    /// CPU time outside operators: serving batches, connections, control and indexing; in embedded mode also other roles.
    pub(crate) transport_seconds: f64,
}

impl From<&ProcessCpu> for CpuReport {
    fn from(cpu: &ProcessCpu) -> Self {
        Self {
            process_seconds: cpu.process_ns as f64 / 1e9,
            transport_seconds: cpu.transport_ns as f64 / 1e9,
        }
    }
}

/// Peak memory by role. In embedded mode, all roles share one process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PeakRss {
    /// The process of the consumers.
    pub(crate) client: u64,
    /// The coordinator's process.
    pub(crate) coordinator: u64,
    /// Each worker's process.
    pub(crate) workers: Vec<u64>,
}

impl RunReport {
    /// Formats the report as a text table.
    pub(crate) fn to_text(&self) -> String {
        let per_second = |count: f64| if self.seconds > 0.0 { count / self.seconds } else { 0.0 };
        let stalled = per_second(self.stall_seconds) / f64::from(self.consumers.max(1));
        let first = self.first_batch_seconds.map_or("none".to_owned(), |first| format!("after {first:.2} s"));
        let batches = format_count(self.batches, "batch");
        let epochs = format_count(self.epochs.into(), "epoch");
        let mut lines = vec![
            ("job", self.job.clone()),
            ("rows", format!("{} in {batches}, {epochs}", self.rows)),
            (
                "time",
                format!("{:.2} s, first batch {first} (setup {:.2} s)", self.seconds, self.setup_seconds),
            ),
            (
                "rate",
                format!("{:.0} rows/s, {}/s", self.rows_per_s, format_bytes(per_second(self.bytes as f64))),
            ),
            ("stall", format!("{:.2} s, {:.0} % of the time", self.stall_seconds, stalled.min(1.0) * 100.0)),
        ];
        if let (Some(digest), Some(content)) = (&self.digest, &self.content_digest) {
            lines.push(("digest", format!("{digest} in order, {content} of the content")));
        }
        if let Some(AuditReport { expected, once, skipped, missing, repeated, unexpected }) = &self.audit {
            let skipped = if *skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
            let mut counts = format!(
                "{expected} rows expected, {once} once{skipped}, {missing} missing, {repeated} repeated"
            );
            if *unexpected > 0 {
                counts.push_str(&format!(", {unexpected} unexpected"));
            }
            lines.push(("audit", counts));
        }
        lines.extend(self.columns.lines());
        lines.push(("memory", self.memory()));
        if self.skipped.count > 0 {
            lines.push(("skipped", format_count(self.skipped.count, "row")));
        }
        let mut text: String = lines.iter().map(|(name, value)| format!("{name:<8} {value}\n")).collect();
        for row in &self.skipped.first {
            text.push_str(&format!("  row {}: {} at {}: {}\n", row.row, row.shard, row.offset, row.reason));
        }
        if self.defects.count > 0 {
            text.push_str(&format!("{:<8} {}\n", "defects", self.defects.count));
        }
        for defect in &self.defects.first {
            text.push_str(&format!("  {defect}\n"));
        }
        if !self.operators.is_empty() {
            text.push('\n');
            text.push_str(&self.operator_table());
        }
        text
    }

    fn memory(&self) -> String {
        let workers: Vec<String> =
            self.peak_rss_bytes.workers.iter().map(|bytes| format_bytes(*bytes as f64)).collect();
        let client = format_bytes(self.peak_rss_bytes.client as f64);
        if workers.is_empty() {
            return format!("peak {client}");
        }
        let coordinator = format_bytes(self.peak_rss_bytes.coordinator as f64);
        format!("peak {client}; coordinator {coordinator}; workers {}", workers.join(", "))
    }

    fn operator_table(&self) -> String {
        let header = ["operator", "rows in", "rows out", "bytes out", "cpu s", "rows/cpu s", "wait s"];
        let rows = self.operators.iter().map(|operator| {
            vec![
                operator.name.clone(),
                operator.rows_in.to_string(),
                operator.rows_out.to_string(),
                format_bytes(operator.bytes_out as f64),
                format!("{:.2}", operator.cpu_seconds),
                operator.rows_per_cpu_second.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
                format!("{:.2}", operator.wait_seconds),
            ]
        });
        table::render_with_header(header, rows, &[0])
    }
}

#[cfg(test)]
mod tests;
