//! Checkpoints of a job: the position from which a job resumes, the recent positions of one consumer, and the position of
//! every stream at a step.

mod history;
mod position;

pub use self::history::{
    BatchCount, DeliveredRun, HISTORY_BATCHES, HistoryBase, PositionHistory, StepId, StepLookup,
};
pub use self::position::{Fingerprints, JobStep, OpenRange, POSITION_VERSION, Position};
