//! Generates ids from the clock, the process id and the system's randomness. No other file in Feedline uses the system's
//! randomness.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use feedline_data::ids::{SessionId, WorkerId};

/// Returns a unique worker id, which no other worker and no earlier run has.
pub(crate) fn worker_id() -> WorkerId {
    WorkerId(random_u64())
}

/// Returns the id of a new consumer session. It is larger than the ids of all earlier sessions if the clocks agree.
pub(crate) fn session_id() -> SessionId {
    SessionId(now_ns())
}

/// Returns an id that identifies this start of a coordinator. It is larger than the ids of earlier starts on this
/// machine.
pub(crate) fn coordinator_start_id() -> u64 {
    now_ns()
}

/// Returns eight hexadecimal digits, which distinguish the jobs of one pipeline.
pub(crate) fn name_suffix() -> String {
    format!("{:08x}", random_u64() as u32)
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns 64 random bits. The standard library takes the keys of its hashers from the system's randomness.
fn random_u64() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(now_ns());
    hasher.write_u32(std::process::id());
    hasher.finish()
}
