//! The report of `feedline bench transport`: medians over turns, as a table or as JSON.

use serde::Serialize;

use super::Turn;
use crate::table;

/// What is compared with: every other rate is shown as a part of this one's.
const REFERENCE: &str = "raw TCP";

/// The whole report. Field names are those of the JSON report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Report {
    subjects: Vec<SubjectReport>,
    /// Turns of each subject.
    turns: u32,
    /// Size of a batch.
    batch_bytes: u64,
    /// Cores that this process may use.
    cores: u32,
}

/// Medians of one subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SubjectReport {
    name: String,
    /// 10⁹ bytes per second: the median turn, the slowest and the fastest.
    gb_per_s: f64,
    gb_per_s_min: f64,
    gb_per_s_max: f64,
    /// CPU seconds of the sending process for 10⁹ bytes.
    sender_cpu_s_per_gb: f64,
    /// CPU seconds of the receiving process for 10⁹ bytes.
    receiver_cpu_s_per_gb: f64,
    /// The median rate as a part of raw TCP's.
    of_raw_tcp: f64,
}

impl SubjectReport {
    /// Medians over turns; there is at least one.
    pub(super) fn new(name: &str, turns: &[Turn]) -> Self {
        let of = |value: fn(&Turn) -> f64| sorted(turns.iter().map(value));
        let rates = of(|turn| turn.bytes as f64 / 1e9 / turn.wall.as_secs_f64());
        let sender = of(|turn| turn.sender_cpu.as_secs_f64() / (turn.bytes as f64 / 1e9));
        let receiver = of(|turn| turn.receiver_cpu.as_secs_f64() / (turn.bytes as f64 / 1e9));
        Self {
            name: name.to_owned(),
            gb_per_s: middle(&rates),
            gb_per_s_min: rates.first().copied().unwrap_or(0.0),
            gb_per_s_max: rates.last().copied().unwrap_or(0.0),
            sender_cpu_s_per_gb: middle(&sender),
            receiver_cpu_s_per_gb: middle(&receiver),
            of_raw_tcp: 0.0,
        }
    }
}

impl Report {
    /// Compares the subjects.
    pub(super) fn new(mut subjects: Vec<SubjectReport>, turns: u32, batch_bytes: u64) -> Self {
        let reference = subjects.iter().find(|subject| subject.name == REFERENCE);
        let reference = reference.map_or(f64::INFINITY, |subject| subject.gb_per_s);
        for subject in &mut subjects {
            subject.of_raw_tcp = subject.gb_per_s / reference;
        }
        Self { subjects, turns, batch_bytes, cores: crate::environment::cores() }
    }

    /// One line of JSON.
    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self).map(|line| line + "\n")
    }

    /// A table for people.
    pub(super) fn to_text(&self) -> String {
        let head = ["path", "GB/s", "min", "max", "sender cpu s/GB", "receiver cpu s/GB", "of raw TCP"];
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
        let head = head.map(str::to_owned).to_vec();
        let table = table::render(&[head].into_iter().chain(rows).collect::<Vec<_>>(), &[0]);
        let Self { turns, batch_bytes, cores, .. } = self;
        format!("{table}\nmedian of {turns} turns; batches of {batch_bytes} bytes; {cores} cores\n")
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn middle(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn turn(ms: u64) -> Turn {
        Turn {
            bytes: 1_000_000_000,
            wall: Duration::from_millis(ms),
            receiver_cpu: Duration::from_millis(ms / 2),
            sender_cpu: Duration::from_millis(ms / 4),
        }
    }

    #[test]
    fn medians_and_ratios() {
        let raw = SubjectReport::new("raw TCP", &[turn(400), turn(250), turn(200)]);
        assert_eq!((raw.gb_per_s, raw.gb_per_s_min, raw.gb_per_s_max), (4.0, 2.5, 5.0));
        assert_eq!((raw.receiver_cpu_s_per_gb, raw.sender_cpu_s_per_gb), (0.125, 0.062));
        let ours = SubjectReport::new("ours", &[turn(500)]);
        let report = Report::new(vec![raw, ours], 3, 19_267_584);
        assert_eq!(report.subjects[1].of_raw_tcp, 0.5);
        assert!(report.to_text().starts_with("path"));
        assert!(report.to_json().unwrap().contains("\"of_raw_tcp\":0.5"));
    }
}
