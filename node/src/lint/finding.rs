//! A finding: the check, the severity, the sentence and the place.

use feedline_data::manifest::ShardRef;
use feedline_data::pipeline::PipelinePart;
use feedline_worker::sample::SourceError;
use serde::{Serialize, Serializer};

use super::checks::{Check, Severity};

/// One finding of a check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// The check.
    #[serde(serialize_with = "serialize_name")]
    pub(crate) check: Check,
    /// The severity.
    pub(crate) severity: Severity,
    /// The sentence.
    pub(crate) message: String,
    /// The number of shards with this finding. The message and the place are those of the first one.
    pub(crate) count: u64,
    /// The object or URL.
    pub(crate) url: Option<String>,
    /// The part of the pipeline file.
    #[serde(skip)]
    pub(crate) part: Option<PipelinePart>,
    /// The line in the pipeline file, counted from 1.
    pub(crate) line: Option<usize>,
}

fn serialize_name<S: Serializer>(check: &Check, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(check.name())
}

impl Finding {
    /// Creates a finding with the severity of its check, without a place.
    pub(crate) fn new(check: Check, message: impl Into<String>) -> Self {
        Self {
            check,
            severity: check.severity(),
            message: message.into(),
            count: 1,
            url: None,
            part: None,
            line: None,
        }
    }

    /// Creates a finding for an error that occurred at a URL of the source.
    pub(crate) fn of_source(error: &SourceError, url: &str) -> Self {
        let check = match error {
            SourceError::Url { .. } | SourceError::Rejected { .. } => Check::Url,
            SourceError::NotFound { .. } | SourceError::Empty { .. } => Check::NoMatch,
            SourceError::Denied { .. } => Check::AccessDenied,
            SourceError::Store { .. }
            | SourceError::Request { .. }
            | SourceError::ShardChanged { .. }
            | SourceError::NoValidator { .. } => Check::Store,
            SourceError::Corrupt { .. } | SourceError::Unsupported { .. } => Check::UnreadableShard,
            SourceError::MissingFeature { .. } => Check::MissingColumn,
        };
        Self::new(check, error.to_string()).at_url(url)
    }

    /// Sets the URL.
    pub(crate) fn at_url(self, url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..self }
    }

    /// Sets the URL to that of a shard.
    pub(crate) fn at(self, shard: &ShardRef) -> Self {
        self.at_url(&*shard.url)
    }

    /// Sets the part of the pipeline file.
    pub(crate) fn in_part(self, part: PipelinePart) -> Self {
        Self { part: Some(part), ..self }
    }

    /// Makes the finding a warning if `is_warning`.
    pub(crate) fn warning_if(self, is_warning: bool) -> Self {
        if is_warning { Self { severity: Severity::Warning, ..self } } else { self }
    }
}

/// Combines the findings of each check about shards into its first finding.
pub(crate) fn combine_shards(findings: Vec<Finding>) -> Vec<Finding> {
    let mut combined: Vec<Finding> = Vec::new();
    for finding in findings {
        let same = |other: &&mut Finding| {
            (other.check, other.severity, other.part) == (finding.check, finding.severity, finding.part)
        };
        match combined.iter_mut().find(same) {
            Some(first) => first.count += finding.count,
            None => combined.push(finding),
        }
    }
    combined
}
