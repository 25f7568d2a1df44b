//! The table of checks: their names, their severities and what they report.

use serde::Serialize;

/// How severe a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// A job fails, or delivers no rows.
    Error,
    /// A job runs, but is slow or delivers other rows than expected.
    Warning,
}

impl Severity {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// Defines [`Check`] from lines of a variant, a name, a severity and what the check reports.
macro_rules! checks {
    ($($variant:ident, $name:literal, $severity:ident, $reports:literal;)+) => {
        /// A check of `feedline lint`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Check {
            $(#[doc = $reports] $variant,)+
        }

        impl Check {
            /// All checks, in the order of the report.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name in reports.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The severity of the check's findings, unless a finding has another one.
            pub(crate) fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity,)+ }
            }

            /// What the check reports.
            #[cfg(test)]
            pub(crate) fn reports(self) -> &'static str {
                match self { $(Self::$variant => $reports,)+ }
            }
        }
    };
}

checks! {
    PipelineFile, "pipeline-file", Error, "The pipeline file cannot be read, or is invalid.";
    Credentials, "credentials", Error, "`source.credentials` is unknown, or does not apply to a URL.";
    Url, "url", Error, "A URL is invalid, or may not be read.";
    AccessDenied, "access-denied", Error, "A store denies access, or a file may not be read.";
    Store, "store", Error, "A store does not respond, or responds with an error.";
    NoMatch, "no-match", Error, "A URL matches no objects.";
    MixedExtensions, "mixed-extensions", Warning, "A few objects have another extension than the others.";
    EmptyShard, "empty-shard", Warning, "A shard has no rows.";
    SmallShards, "small-shards", Warning, "The dataset consists of many small objects.";
    SkewedShards, "skewed-shards", Warning, "The largest shard is much larger than the others.";
    UnreadableShard, "unreadable-shard", Error, "A shard is corrupted or in another format.";
    DefectiveShard, "defective-shard", Error, "The end of a shard cannot be read. With `on_error: skip` or `replace`, this is a warning.";
    LongRun, "long-run", Warning, "A part of a compressed shard can only be decompressed from its start.";
    MissingColumn, "missing-column", Error, "The data lacks a column of `source.features`.";
    SchemaDifference, "schema-difference", Error, "The columns of two shards differ. If a job can still read them, this is a warning.";
    NoRows, "no-rows", Error, "The dataset has no rows.";
    NoRecords, "no-records", Warning, "The topics of an unbounded job have no records yet.";
    Operator, "operator", Error, "An operator does not accept its columns, or its file cannot be read.";
    FailingRows, "failing-rows", Error, "Rows of the sample fail. With `on_error: skip` or `replace`, this is a warning.";
    FilteredRows, "filtered-rows", Warning, "The operators remove all rows of the sample.";
    FewRows, "few-rows", Error, "The dataset has fewer rows than consumers, or `remainder: drop` drops all rows.";
    LargeBatch, "large-batch", Warning, "The dataset has fewer rows than one batch of each consumer.";
    ShuffleWindow, "shuffle-window", Warning, "`shuffle.window` is too small to mix the rows of several blocks.";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documentation page contains the same table.
    #[test]
    fn the_documentation_lists_every_check() {
        let page = include_str!("../../../docs/lint.md");
        let row = |check: &Check| {
            format!("| `{}` | {} | {} |\n", check.name(), check.severity().name(), check.reports())
        };
        let table: String = Check::ALL.iter().map(row).collect();
        assert!(page.contains(&table), "docs/lint.md needs this table:\n{table}");
    }
}
