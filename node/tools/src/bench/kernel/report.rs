//! The report of `feedline bench kernel`: medians over repetitions, as a table or as JSON.

use feedline_command::table;
use serde::Serialize;

/// The whole report. Field names are the keys of the JSON report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct KernelReport {
    subjects: Vec<KernelSubjectReport>,
    /// Repetitions of each subject.
    turns: u32,
    /// Number of JPEGs that each pass decodes.
    images: usize,
    /// Number of cores of the subjects that run on several cores.
    cores: u32,
}

/// The rates of one subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct KernelSubjectReport {
    name: String,
    /// Cores that the subject runs on.
    cores: u32,
    /// Images per second of the median repetition.
    images_per_s: f64,
    /// Images per second of the slowest repetition.
    images_per_s_min: f64,
    /// Images per second of the fastest repetition.
    images_per_s_max: f64,
    /// The median rate per core, divided by the median rate per core of the first subject.
    of_first: f64,
}

impl KernelSubjectReport {
    /// Computes the median of at least one repetition.
    pub(super) fn new(name: &str, cores: u32, rates: &[f64]) -> Self {
        let mut sorted = rates.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
        Self {
            name: name.to_owned(),
            cores,
            images_per_s: (at((sorted.len().max(1) - 1) / 2) + at(sorted.len() / 2)) / 2.0,
            images_per_s_min: at(0),
            images_per_s_max: at(sorted.len().max(1) - 1),
            of_first: 1.0,
        }
    }

    fn per_core(&self) -> f64 {
        self.images_per_s / f64::from(self.cores.max(1))
    }
}

impl KernelReport {
    /// Compares each subject with the first subject.
    pub(super) fn new(mut subjects: Vec<KernelSubjectReport>, turns: u32, images: usize, cores: u32) -> Self {
        let first = subjects.first().map_or(0.0, KernelSubjectReport::per_core);
        // If the first subject decoded nothing, report a ratio of 0 instead of infinity.
        let first = if first > 0.0 { first } else { f64::INFINITY };
        for subject in &mut subjects {
            subject.of_first = subject.per_core() / first;
        }
        Self { subjects, turns, images, cores }
    }

    /// Formats the report as a text table.
    pub(super) fn to_text(&self) -> String {
        let header = ["subject", "cores", "images/s", "min", "max", "per core", "of the first"];
        let rows = self.subjects.iter().map(|subject| {
            vec![
                subject.name.clone(),
                subject.cores.to_string(),
                format!("{:.0}", subject.images_per_s),
                format!("{:.0}", subject.images_per_s_min),
                format!("{:.0}", subject.images_per_s_max),
                format!("{:.0}", subject.per_core()),
                format!("{:.1} %", 100.0 * subject.of_first),
            ]
        });
        let table = table::render_with_header(header, rows, &[0]);
        format!(
            "random crops of {} JPEGs, resized to 224 x 224: median of {} repetitions\n{table}",
            self.images, self.turns
        )
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn subjects_are_compared_per_core() {
        let subjects = vec![
            KernelSubjectReport::new("loop, one thread", 1, &[1000.0, 900.0, 1100.0]),
            KernelSubjectReport::new("job in this process", 2, &[1800.0, 1900.0]),
        ];
        let report = KernelReport::new(subjects, 3, 400, 2);
        expect![[r#"
            random crops of 400 JPEGs, resized to 224 x 224: median of 3 repetitions
            subject              cores  images/s   min   max  per core  of the first
            loop, one thread         1      1000   900  1100      1000       100.0 %
            job in this process      2      1850  1800  1900       925        92.5 %
        "#]]
        .assert_eq(&report.to_text());
    }
}
