//! The samples that the driver sends to the planning task.

use feedline_data::ids::Millis;
use feedline_data::messages::samples::Samples;

/// The samples of a leader.
#[derive(Debug)]
pub(crate) struct LeaderSamples {
    /// The term of the leader.
    pub(crate) term: u64,
    /// The time of the state machine.
    pub(crate) now: Millis,
    /// The last reports.
    pub(crate) samples: Box<Samples>,
}
