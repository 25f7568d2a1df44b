//! The segments of unbounded jobs, as sent to workers in a plan.

use serde::{Deserialize, Serialize};

use crate::ids::JobId;
use crate::manifest::ShardRef;
use crate::segments::Segment;

/// The segments of one job that contain leased rows, with the partitions that they refer to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSegments {
    /// The job.
    pub job: JobId,
    /// The partitions by their index in the job.
    pub partitions: Vec<(u32, ShardRef)>,
    /// The segments, in order.
    pub segments: Vec<Segment>,
}
