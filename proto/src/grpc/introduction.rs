//! Conversion of the identity of a coordinator, which its introductions and its raft messages contain.

use crate::services::MemberInfo;
use crate::wire;

/// Converts an identity to its message.
pub(super) fn encode_introduction(info: MemberInfo) -> wire::Introduction {
    let MemberInfo { id, has_state, url, incarnation } = info;
    wire::Introduction { id, has_state, url, incarnation }
}

/// Converts a message to the identity.
pub(super) fn decode_introduction(message: wire::Introduction) -> MemberInfo {
    let wire::Introduction { id, has_state, url, incarnation } = message;
    MemberInfo { id, has_state, url, incarnation }
}
