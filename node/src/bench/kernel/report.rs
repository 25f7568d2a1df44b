//! The report of `feedline bench kernel`: medians over turns, as a table or as JSON.

use serde::Serialize;

use crate::table;

/// The whole report. Field names are those of the JSON report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Report {
    subjects: Vec<SubjectReport>,
    /// Turns of each subject.
    turns: u32,
    /// JPEGs that were read.
    images: usize,
    /// Cores that subjects of several cores used.
    cores: u32,
}

/// What one subject did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SubjectReport {
    name: String,
    /// Cores that it ran on.
    cores: u32,
    /// Images per second: the median turn, the slowest and the fastest.
    images_per_s: f64,
    images_per_s_min: f64,
    images_per_s_max: f64,
    /// The median for each core as a part of the first subject's.
    of_first: f64,
}

impl SubjectReport {
    /// The median over turns; there is at least one.
    pub(super) fn new(name: &str, cores: u32, rates: &[f64]) -> Self {
        let mut sorted = rates.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |place: usize| sorted.get(place).copied().unwrap_or(0.0);
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

impl Report {
    /// Compares the subjects with the first.
    pub(super) fn new(mut subjects: Vec<SubjectReport>, turns: u32, images: usize, cores: u32) -> Self {
        let first = subjects.first().map_or(0.0, SubjectReport::per_core);
        // Where nothing decodes there is nothing to compare with.
        let first = if first > 0.0 { first } else { f64::INFINITY };
        for subject in &mut subjects {
            subject.of_first = subject.per_core() / first;
        }
        Self { subjects, turns, images, cores }
    }

    /// One line of JSON.
    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self).map(|line| line + "\n")
    }

    /// A table for people.
    pub(super) fn to_text(&self) -> String {
        let head = ["subject", "cores", "images/s", "min", "max", "per core", "of the first"];
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
        let head = head.map(str::to_owned).to_vec();
        let table = table::render(&[head].into_iter().chain(rows).collect::<Vec<_>>(), &[0]);
        format!(
            "random crops of {} JPEGs, resized to 224 x 224: median of {} turns\n{table}",
            self.images, self.turns
        )
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn subjects_are_compared_core_by_core() {
        let subjects = vec![
            SubjectReport::new("loop, one thread", 1, &[1000.0, 900.0, 1100.0]),
            SubjectReport::new("job in this process", 2, &[1800.0, 1900.0]),
        ];
        let report = Report::new(subjects, 3, 400, 2);
        expect![[r#"
            random crops of 400 JPEGs, resized to 224 x 224: median of 3 turns
            subject              cores  images/s   min   max  per core  of the first
            loop, one thread         1      1000   900  1100      1000       100.0 %
            job in this process      2      1850  1800  1900       925        92.5 %
        "#]]
        .assert_eq(&report.to_text());
    }
}
