//! The coordinator role: drives the state machine of `feedline_core::cluster` with a clock, a log and requests.
//!
//! One task owns the state machine and the log. It knows no worker, client or batch, and decides nothing by itself.

mod clock;
mod driver;
mod error;
mod files;
mod index_store;
mod log;
mod metrics;
mod planning;
mod running;
mod scaling;
mod service;
mod settings;

pub use error::CoordinatorError;
pub use metrics::{METRICS, MetricDescription, MetricKind, describe_metrics};
pub use running::{RunningCoordinator, start, start_scaled};
pub use scaling::Scaler;
pub use settings::CoordinatorSettings;
