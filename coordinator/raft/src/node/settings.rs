//! The settings and clocks of a member.

use feedline_data::ids::Millis;

/// The settings of a member.
#[derive(Debug, Clone, PartialEq)]
pub struct RaftSettings {
    /// The settings of the state machine.
    pub cluster: feedline_cluster::ClusterSettings,
    /// Milliseconds between two calls of `RaftNode::tick`.
    pub tick_ms: u64,
    /// The shortest election timeout in ticks. Each timeout is drawn between this and twice this number.
    pub election_ticks: u32,
    /// The address of the member; empty for a single coordinator.
    pub url: String,
    /// Entries before a snapshot that stay in memory for slow followers.
    pub kept_entries: u64,
    /// A planted bug.
    #[cfg(feature = "plants")]
    pub plant: Option<PlantedBug>,
    /// Bytes of entries after which the log is compacted, if they are also four times as large as the last snapshot.
    pub compact_bytes: u64,
}

/// A planted bug: the simulation must find it.
#[cfg(feature = "plants")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// Granted leases do not enter the log.
    ForgetLeases,
    /// Assigned splits do not enter the log.
    ForgetAssigned,
    /// Replies are sent before their entries are committed.
    EarlyAnswer,
    /// A deposed leader still replies.
    StaleLeader,
    /// A membership change is answered before it is committed.
    EarlyChange,
    /// Hung writes count as durable: replies are sent and entries acknowledged.
    HungWrite,
}

impl Default for RaftSettings {
    fn default() -> Self {
        Self {
            cluster: feedline_cluster::ClusterSettings::default(),
            tick_ms: 50,
            election_ticks: 8,
            url: String::new(),
            compact_bytes: 8 << 20,
            kept_entries: 4096,
            #[cfg(feature = "plants")]
            plant: None,
        }
    }
}

/// The times of a member's two clocks in milliseconds. Both are monotonic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MonotonicTime {
    /// The time of the state machine. It stops while the member cannot process requests.
    pub cluster: Millis,
    /// The time since the start, including suspensions of the process. Leases of leaders end by this clock.
    pub real: Millis,
}
