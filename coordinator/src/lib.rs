//! The coordinator: drives a raft node of `feedline_raft` with a clock, a disk, a network and requests.
//!
//! One task owns the node. All decisions are made in `feedline_cluster`.

mod address_book;
mod bootstrap;
mod clock;
mod disk;
mod driver;
mod error;
mod identity;
mod index_store;
mod introductions;
mod job_gauges;
mod job_series;
mod leader_samples;
mod limits;
mod metrics;
mod peer_event;
mod peer_service;
mod peers;
mod planning;
mod request;
mod request_queue;
mod running;
mod scaling;
mod scaling_policy;
mod service;
mod settings;
mod tenant_gauges;
mod tenant_view;
mod throttle_signal;
mod token_authenticator;
mod victims;

pub use error::CoordinatorError;
pub use job_series::JobSeries;
pub use limits::RequestLimits;
pub use metrics::METRICS;
pub use peers::{GrpcPeers, PeerDirectory};
pub use running::{CoordinatorContext, CoordinatorHealth, RunningCoordinator, start, start_in};
pub use scaling::{PoolChange, PoolDecision, PoolLimits, Scaler};
pub use settings::CoordinatorSettings;
pub use tenant_view::TenantView;
pub use token_authenticator::TokenAuthenticator;

/// Decodes `bytes` as an index file, and as the body of an index file. This is the entry point of the fuzz target `index`.
#[doc(hidden)]
pub fn read_index(bytes: &[u8]) {
    index_store::read_any(bytes);
}
