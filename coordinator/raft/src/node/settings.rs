//! A member's settings, and its clocks.

use feedline_data::ids::Millis;

/// Times of a member.
#[derive(Debug, Clone, PartialEq)]
pub struct RaftSettings {
    /// Of the state machine.
    pub cluster: feedline_cluster::ClusterSettings,
    /// Milliseconds between two calls of [`RaftNode::tick`].
    pub tick_ms: u64,
    /// Ticks without a word of the leader after which another may be elected; drawn between this and twice as much.
    pub election_ticks: u32,
    /// Where it is found; empty where nobody looks for it.
    pub url: String,
    /// Entries before a snapshot that are kept for followers that are a little behind.
    pub kept_entries: u64,
    /// A bug to find.
    #[cfg(feature = "plants")]
    pub plant: Option<PlantedBug>,
    /// Bytes of entries behind a snapshot before the next one, if they are also four times as much as the last.
    pub compact_bytes: u64,
}

/// A bug that shows whether the simulation finds it.
#[cfg(feature = "plants")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// Leases are not in the log.
    ForgetLeases,
    /// Splits given to consumers are not in the log.
    ForgetAssigned,
    /// Answers leave before what they rest on is kept.
    EarlyAnswer,
    /// A leader answers whether or not it still leads.
    StaleLeader,
    /// A change of the members is answered once it is asked for, though those who are left cannot begin without one that goes.
    EarlyChange,
    /// What a disk that hangs has not written counts as written: it is answered, and acknowledged to the others.
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

/// The time by a member's two clocks, in milliseconds. Neither goes back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MonotonicTime {
    /// The state machine's time; it may stand still while the member cannot listen.
    pub cluster: Millis,
    /// Time that passes while the process is suspended, too: leases end by it.
    pub real: Millis,
}
