//! The exported series of running jobs.
//!
//! They are not in the registry of the crate `metrics`, which cannot remove the series of ended jobs.

/// One series of a gauge of running jobs.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSeries {
    /// The name of the gauge in [`METRICS`](crate::METRICS).
    pub name: &'static str,
    /// The names and the values of the labels.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}
