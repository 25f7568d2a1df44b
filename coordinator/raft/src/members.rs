//! The ids and addresses of the members of a cluster.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;

use feedline_data::messages::{ServiceError, ServiceErrorKind};
use serde::{Deserialize, Serialize};

/// The id of a member, generated once and stored in its log. A coordinator that loses its log becomes a new member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemberId(NonZeroU64);

impl MemberId {
    /// Creates an id from random bits.
    pub fn from_random(bits: u64) -> Self {
        Self(NonZeroU64::new(bits >> 1).unwrap_or(NonZeroU64::MIN))
    }

    /// Creates an id from a number; `None` for 0.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Returns the number of the id.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.get())
    }
}

/// Returns the error for a coordinator that was removed from the cluster, which can neither vote nor join again.
pub fn removed_member(id: MemberId) -> ServiceError {
    ServiceError::new(
        ServiceErrorKind::Denied,
        format!(
            "coordinator {id} was removed from the cluster; stop it, or start it with an empty data directory so that it joins as a new member"
        ),
    )
}

/// Members with their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Members(pub BTreeMap<MemberId, String>);

impl Members {
    /// Returns the ids of all members in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = MemberId> {
        self.0.keys().copied()
    }

    /// Returns the address of a member.
    pub fn url(&self, id: MemberId) -> Option<&str> {
        self.0.get(&id).map(String::as_str)
    }

    /// Returns the id of the member with an address.
    pub fn id_of(&self, url: &str) -> Option<MemberId> {
        self.0.iter().find(|(_, other)| *other == url).map(|(id, _)| *id)
    }
}
