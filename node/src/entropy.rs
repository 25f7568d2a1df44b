//! Where ids come from: the clock, the process id and the system's randomness. Nothing else in Feedline draws any.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use feedline_data::ids::{SessionId, WorkerId};

/// A worker's id: differs from that of every other worker and of earlier lives of this process.
pub(crate) fn worker_id() -> WorkerId {
    WorkerId(random())
}

/// A consumer's session: larger than that of every earlier session, as far as clocks agree.
pub(crate) fn session_id() -> SessionId {
    SessionId(now_ns())
}

/// A coordinator's life: larger than that of every earlier one on this machine.
pub(crate) fn coordinator_life() -> u64 {
    now_ns()
}

/// Eight letters and digits that tell runs of one pipeline apart.
pub(crate) fn name_suffix() -> String {
    format!("{:08x}", random() as u32)
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// 64 bits: the standard library keys its hashers from the system's randomness.
fn random() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(now_ns());
    hasher.write_u32(std::process::id());
    hasher.finish()
}
