//! Job checkpoints: the position that a job resumes from, the recent positions of one consumer, and the positions of all
//! streams at a step.

mod history;
mod position;

pub use self::history::{
    BatchCount, DeliveredRun, HISTORY_BATCHES, HistoryBase, PositionHistory, StepId, StepLookup,
};
pub use self::position::{Fingerprints, JobStep, OpenRange, POSITION_VERSION, Position};
