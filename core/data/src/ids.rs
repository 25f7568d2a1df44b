//! Ids of jobs, workers, sessions and tasks. Callers generate the random ids, because this crate has no source of entropy.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }
    };
}

id!(
    /// Identifies a job. The coordinator assigns job ids in increasing order.
    JobId
);
id!(
    /// Identifies one run of a worker process: a restarted worker has a new id.
    WorkerId
);
id!(
    /// Identifies one connection of a consumer to a job.
    SessionId
);
id!(
    /// Identifies a task that lists or indexes a dataset.
    TaskId
);

/// A point in time: milliseconds on the caller's clock since an arbitrary but fixed start.
pub type Millis = u64;
