//! Identities. Numbers that come from entropy (worker and session ids) are drawn outside the core.

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
    /// A job; counted by the coordinator.
    JobId
);
id!(
    /// One life of a worker process: a restarted worker has another id.
    WorkerId
);
id!(
    /// One life of a consumer's connection to a job.
    SessionId
);
id!(
    /// A task of listing or indexing a dataset.
    TaskId
);

/// A point in time in milliseconds since any fixed start, as the caller's clock tells it.
pub type Millis = u64;
