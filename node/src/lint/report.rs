//! The report of `feedline lint`: text as a compiler prints it, or JSON.

use feedline_data::schema::Schema;
use serde::Serialize;

use super::checks::Severity;
use super::finding::Finding;
use super::sampling::RowCount;
use crate::size::{format_bytes, format_count};

/// The whole report. Field names are the keys of the JSON report.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct LintReport {
    /// The pipeline file.
    pub(crate) file: String,
    /// The pipeline's name; `None` if the file is invalid.
    pub(crate) pipeline: Option<String>,
    /// Number of errors and warnings.
    pub(crate) errors: u64,
    pub(crate) warnings: u64,
    /// The findings: errors first.
    pub(crate) findings: Vec<Finding>,
    /// The dataset; `None` if it could not be listed.
    pub(crate) dataset: Option<DatasetReport>,
    /// Duration in seconds.
    pub(crate) seconds: f64,
    /// The text of the pipeline file.
    #[serde(skip)]
    pub(crate) text: String,
}

/// The sampled dataset.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct DatasetReport {
    /// Number and total size of the listed shards.
    pub(crate) shards: u64,
    pub(crate) bytes: u64,
    /// Number of shards whose footer or beginning was read.
    pub(crate) sampled_shards: u64,
    /// Number of rows that passed through the operators.
    pub(crate) sampled_rows: u64,
    /// Bytes that were read from shards before the operators, and the number of requests.
    pub(crate) read_bytes: u64,
    pub(crate) requests: u64,
    /// Number of rows, and whether it is exact.
    pub(crate) rows: u64,
    pub(crate) rows_are_exact: bool,
    /// The columns of the source and of a batch; `None` if they are unknown.
    pub(crate) columns: Option<Vec<ColumnReport>>,
    /// Whether the sample determines all columns and their types. Later rows may have other columns or types.
    pub(crate) columns_are_exact: bool,
    pub(crate) batch_columns: Option<Vec<ColumnReport>>,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ColumnReport {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) column_type: String,
}

/// Returns the columns of a schema.
pub(crate) fn columns(schema: &Schema) -> Vec<ColumnReport> {
    let column = |field: &feedline_data::schema::Field| ColumnReport {
        name: field.name.clone(),
        column_type: field.column_type.to_string(),
    };
    schema.fields.iter().map(column).collect()
}

impl DatasetReport {
    /// Sets the number of rows.
    pub(crate) fn set_rows(&mut self, count: RowCount) {
        (self.rows, self.rows_are_exact) = (count.rows, count.is_exact);
    }
}

impl LintReport {
    /// Adds the findings, errors first, and counts them.
    pub(crate) fn set_findings(&mut self, mut findings: Vec<Finding>) {
        findings.sort_by_key(|finding| finding.severity);
        let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count() as u64;
        (self.errors, self.warnings) = (count(Severity::Error), count(Severity::Warning));
        self.findings = findings;
    }

    /// Formats the report as text.
    pub(crate) fn to_text(&self) -> String {
        let mut text: String =
            self.findings.iter().map(|finding| self.finding_text(finding) + "\n").collect();
        text.push_str(&self.summary());
        text
    }

    /// Returns the numbers of errors and warnings, such as `p.yaml: 1 error, 2 warnings`.
    pub(crate) fn verdict(&self) -> String {
        let counts = match (self.errors, self.warnings) {
            (0, 0) => "no errors".to_owned(),
            (errors, 0) => format_count(errors, "error"),
            (0, warnings) => format_count(warnings, "warning"),
            (errors, warnings) => {
                format!("{}, {}", format_count(errors, "error"), format_count(warnings, "warning"))
            }
        };
        format!("{}: {counts}", self.file)
    }

    fn finding_text(&self, finding: &Finding) -> String {
        let more = match finding.count {
            1 => String::new(),
            count => format!(" ({} more)", count - 1),
        };
        let (severity, check) = (finding.severity.name(), finding.check.name());
        let mut text = format!("{severity}[{check}]: {}{more}\n", finding.message);
        match finding.line {
            Some(line) => {
                text.push_str(&format!("  --> {}:{line}\n", self.file));
                if let Some(source) = self.text.lines().nth(line - 1) {
                    let (number, blank) = (line.to_string(), " ".repeat(line.to_string().len()));
                    text.push_str(&format!(" {blank} |\n {number} | {}\n", source.trim_end()));
                }
            }
            None => {
                let place = finding.url.as_deref().unwrap_or(&self.file);
                text.push_str(&format!("  --> {place}\n"));
            }
        }
        text
    }

    fn summary(&self) -> String {
        let mut text = self.verdict();
        if let Some(dataset) = &self.dataset {
            let about = if dataset.rows_are_exact { "" } else { "about " };
            text.push_str(&format!(
                "; {} of {} with {about}{}, {} and {} sampled",
                format_count(dataset.shards, "shard"),
                format_bytes(dataset.bytes as f64),
                format_count(dataset.rows, "row"),
                format_count(dataset.sampled_shards, "shard"),
                format_count(dataset.sampled_rows, "row"),
            ));
        }
        format!("{text}; {:.2} s\n", self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::lint::checks::Check;

    fn report() -> LintReport {
        let mut report = LintReport {
            file: "p.yaml".to_owned(),
            pipeline: Some("p".to_owned()),
            dataset: Some(DatasetReport {
                shards: 1000,
                bytes: 5_000_000_000,
                sampled_shards: 32,
                sampled_rows: 24,
                rows: 70_000,
                ..DatasetReport::default()
            }),
            seconds: 0.5,
            text:
                "name: p\nsource:\n  url: s3://b/x/*\noperators:\n  - resize: {column: imge, size: [8, 8]}\n"
                    .to_owned(),
            ..LintReport::default()
        };
        let warning =
            Finding::new(Check::EmptyShard, "`s3://b/x/7` is empty: write the shard again, or remove it");
        let error = Finding::new(
            Check::Operator,
            "operator 1 (resize): there is no column `imge`; did you mean `image`? the columns are image, label",
        );
        report.set_findings(vec![
            Finding { count: 3, ..warning.at_url("s3://b/x/7") },
            Finding { line: Some(5), ..error },
        ]);
        report
    }

    #[test]
    fn the_text_has_the_form_of_compiler_messages() {
        expect![[r#"
            error[operator]: operator 1 (resize): there is no column `imge`; did you mean `image`? the columns are image, label
              --> p.yaml:5
               |
             5 |   - resize: {column: imge, size: [8, 8]}

            warning[empty-shard]: `s3://b/x/7` is empty: write the shard again, or remove it (2 more)
              --> s3://b/x/7

            p.yaml: 1 error, 1 warning; 1000 shards of 5.0 GB with about 70000 rows, 32 shards and 24 rows sampled; 0.50 s
        "#]]
        .assert_eq(&report().to_text());
    }

    #[test]
    fn the_keys_of_the_json_report_are_stable() {
        expect![[r#"{"file":"p.yaml","pipeline":"p","errors":1,"warnings":1,"findings":[{"check":"operator","severity":"error","message":"operator 1 (resize): there is no column `imge`; did you mean `image`? the columns are image, label","count":1,"url":null,"line":5},{"check":"empty-shard","severity":"warning","message":"`s3://b/x/7` is empty: write the shard again, or remove it","count":3,"url":"s3://b/x/7","line":null}],"dataset":{"shards":1000,"bytes":5000000000,"sampled_shards":32,"sampled_rows":24,"read_bytes":0,"requests":0,"rows":70000,"rows_are_exact":false,"columns":null,"columns_are_exact":false,"batch_columns":null},"seconds":0.5}"#]]
            .assert_eq(&serde_json::to_string(&report()).unwrap());
    }
}
