//! The report of `feedline bench transport`: medians over repetitions, as a table or as JSON.

use std::time::Duration;

use feedline_command::table;
use serde::Serialize;

/// The subject that all other subjects are compared with.
const REFERENCE: &str = "raw TCP";

/// Time and CPU time of one repetition of one subject.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measurement {
    pub(super) bytes: u64,
    pub(super) wall: Duration,
    /// CPU time of this process, which is the receiver.
    pub(super) receiver_cpu: Duration,
    /// CPU time of the sending process.
    pub(super) sender_cpu: Duration,
}

/// The whole report. Field names are the keys of the JSON report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TransportReport {
    subjects: Vec<TransportSubjectReport>,
    /// Repetitions of each subject.
    turns: u32,
    /// Size of a batch.
    batch_bytes: u64,
    /// Cores that this process may use.
    cores: u32,
}

/// The medians of one subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TransportSubjectReport {
    name: String,
    /// 10⁹ bytes per second of the median repetition.
    gb_per_s: f64,
    /// 10⁹ bytes per second of the slowest repetition.
    gb_per_s_min: f64,
    /// 10⁹ bytes per second of the fastest repetition.
    gb_per_s_max: f64,
    /// CPU seconds of the sending process per 10⁹ bytes.
    sender_cpu_s_per_gb: f64,
    /// CPU seconds of the receiving process per 10⁹ bytes.
    receiver_cpu_s_per_gb: f64,
    /// The median rate, divided by the median rate of raw TCP.
    of_raw_tcp: f64,
}

impl TransportSubjectReport {
    /// Computes the medians of at least one repetition.
    pub(super) fn new(name: &str, measurements: &[Measurement]) -> Self {
        let values = |value: fn(&Measurement) -> f64| sorted(measurements.iter().map(value));
        let rates = values(|one| one.bytes as f64 / 1e9 / one.wall.as_secs_f64());
        let sender = values(|one| one.sender_cpu.as_secs_f64() / (one.bytes as f64 / 1e9));
        let receiver = values(|one| one.receiver_cpu.as_secs_f64() / (one.bytes as f64 / 1e9));
        Self {
            name: name.to_owned(),
            gb_per_s: median(&rates),
            gb_per_s_min: rates.first().copied().unwrap_or(0.0),
            gb_per_s_max: rates.last().copied().unwrap_or(0.0),
            sender_cpu_s_per_gb: median(&sender),
            receiver_cpu_s_per_gb: median(&receiver),
            of_raw_tcp: 0.0,
        }
    }
}

impl TransportReport {
    /// Compares each subject with raw TCP.
    pub(super) fn new(
        mut subjects: Vec<TransportSubjectReport>,
        turns: u32,
        batch_bytes: u64,
        cores: u32,
    ) -> Self {
        let reference = subjects.iter().find(|subject| subject.name == REFERENCE);
        let reference = reference.map_or(f64::INFINITY, |subject| subject.gb_per_s);
        for subject in &mut subjects {
            subject.of_raw_tcp = subject.gb_per_s / reference;
        }
        Self { subjects, turns, batch_bytes, cores }
    }

    /// Formats the report as a text table.
    pub(super) fn to_text(&self) -> String {
        let header = ["path", "GB/s", "min", "max", "sender cpu s/GB", "receiver cpu s/GB", "of raw TCP"];
        let rows = self.subjects.iter().map(|subject| {
            vec![
                subject.name.clone(),
                format!("{:.2}", subject.gb_per_s),
                format!("{:.2}", subject.gb_per_s_min),
                format!("{:.2}", subject.gb_per_s_max),
                format!("{:.3}", subject.sender_cpu_s_per_gb),
                format!("{:.3}", subject.receiver_cpu_s_per_gb),
                format!("{:.2}", subject.of_raw_tcp),
            ]
        });
        let table = table::render_with_header(header, rows, &[0]);
        let Self { turns, batch_bytes, cores, .. } = self;
        format!("{table}\nmedian of {turns} repetitions; batches of {batch_bytes} bytes; {cores} cores\n")
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(ms: u64) -> Measurement {
        Measurement {
            bytes: 1_000_000_000,
            wall: Duration::from_millis(ms),
            receiver_cpu: Duration::from_millis(ms / 2),
            sender_cpu: Duration::from_millis(ms / 4),
        }
    }

    #[test]
    fn rates_are_medians_and_ratios_are_relative_to_raw_tcp() {
        let raw =
            TransportSubjectReport::new("raw TCP", &[measurement(400), measurement(250), measurement(200)]);
        assert_eq!((raw.gb_per_s, raw.gb_per_s_min, raw.gb_per_s_max), (4.0, 2.5, 5.0));
        assert_eq!((raw.receiver_cpu_s_per_gb, raw.sender_cpu_s_per_gb), (0.125, 0.062));
        let worker = TransportSubjectReport::new("Feedline, TCP", &[measurement(500)]);
        let report = TransportReport::new(vec![raw, worker], 3, 19_267_584, 2);
        assert_eq!(report.subjects[1].of_raw_tcp, 0.5);
        assert!(report.to_text().starts_with("path"));
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains("\"of_raw_tcp\":0.5"), "{json}");
    }
}
