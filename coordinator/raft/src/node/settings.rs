//! The settings and clocks of a member.

use feedline_data::ids::Millis;

/// The settings of a member.
#[derive(Debug, Clone, PartialEq)]
pub struct RaftSettings {
    /// The settings of the state machine.
    pub cluster: feedline_cluster::ClusterSettings,
    /// Time between two calls of `RaftNode::tick`, in milliseconds.
    pub tick_ms: u64,
    /// The minimum election timeout in ticks. The maximum is twice this number.
    pub election_ticks: u32,
    /// The address of the member; empty for a single coordinator.
    pub url: String,
    /// Time without a message in milliseconds after which a coordinator at the address of a member replaces this member.
    pub replace_after_ms: Millis,
    /// Number of entries before a snapshot that stay in memory for slow followers.
    pub kept_entries: u64,
    /// A fault that a simulation injects. Coordinators have none.
    pub fault: Option<InjectedFault>,
    /// Whether the member keeps applied records for `RaftNode::take_applied`, which the caller must then call. Only
    /// simulations set it.
    pub collect_applied: bool,
    /// Size of the entries in bytes above which the log is compacted, provided that the entries are also four times as large
    /// as the last snapshot.
    pub compact_bytes: u64,
}

/// An injected fault, which the simulation must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    /// Granted leases are not written to the log.
    ForgetLeases,
    /// Assigned splits are not written to the log.
    ForgetAssigned,
    /// Replies are sent before their entries are committed.
    EarlyAnswer,
    /// A deposed leader still replies.
    StaleLeader,
    /// A membership change is answered before it is committed.
    EarlyChange,
    /// Hung writes count as durable: replies are sent, and entries are acknowledged.
    HungWrite,
}

impl Default for RaftSettings {
    fn default() -> Self {
        Self {
            cluster: feedline_cluster::ClusterSettings::default(),
            tick_ms: 50,
            election_ticks: 8,
            url: String::new(),
            replace_after_ms: 10_000,
            compact_bytes: 8 << 20,
            kept_entries: 4096,
            fault: None,
            collect_applied: false,
        }
    }
}

/// The times of a member's two clocks in milliseconds. Both are monotonic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MonotonicTime {
    /// The time of the state machine, which stops while the member cannot process requests.
    pub cluster: Millis,
    /// The time since the start, including suspensions of the process. Leader leases are measured with this clock.
    pub real: Millis,
}
