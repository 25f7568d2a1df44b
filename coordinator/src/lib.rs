//! The coordinator role: drives a member of `feedline_raft`, alone or among several, with a clock, a disk, a network
//! and requests.
//!
//! One task owns the member. It knows no worker, client or batch, and decides nothing by itself.

mod bootstrap;
mod clock;
mod disk;
mod driver;
mod error;
mod index_store;
mod limits;
mod metrics;
mod peer_service;
mod peers;
mod planning;
mod request;
mod request_queue;
mod running;
mod scaling;
mod service;
mod settings;
mod tenant_gauges;
mod tenant_view;
mod token_authenticator;

/// Reads `bytes` as a saved index, and as what such a file holds behind a checksum that is right.
#[cfg(feature = "fuzzing")]
pub fn read_index(bytes: &[u8]) {
    index_store::read_any(bytes);
}

pub use error::CoordinatorError;
pub use limits::RequestLimits;
pub use metrics::{METRICS, MetricDescription, MetricKind, describe_metrics};
pub use peers::{GrpcPeers, PeerDirectory};
pub use running::{CoordinatorContext, RunningCoordinator, start, start_in};
pub use scaling::Scaler;
pub use settings::CoordinatorSettings;
pub use tenant_view::TenantView;
pub use token_authenticator::TokenAuthenticator;
