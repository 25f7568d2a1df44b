//! The client: joins a job as a consumer, fetches its splits from workers and assembles the batches in order.
//!
//! It uses coordinators and workers through the service traits of `feedline_proto`, in this process or by gRPC.
//!
//! Each rank of a training job opens the same spec, creates its own consumer and iterates over its batches. A checkpoint
//! stores [`Job::position`]. A spec that starts at this position resumes with the next batch, on any number of consumers.
//!
//! ```no_run
//! use feedline_client::{ClientError, ClientSettings, Credentials, Job};
//! use feedline_data::messages::JobSpec;
//! use feedline_data::ids::SessionId;
//! use feedline_data::pipeline::Pipeline;
//! use feedline_data::checkpoint::Position;
//!
//! async fn train(pipeline: Pipeline, rank: u32, saved: Option<Position>) -> Result<Option<Position>, ClientError> {
//!     let spec = JobSpec { epochs: 3, consumers: 4, virtual_consumers: 4, start: saved, ..JobSpec::new(pipeline) };
//!     let job = Job::connect("http://10.0.0.1:7070", &Credentials::default(), spec, ClientSettings::default()).await?;
//!     // The session number must increase when this rank restarts: use the time in nanoseconds.
//!     let mut consumer = job.consumer(rank, SessionId(1_700_000_000_000_000_000));
//!     for _ in 0..1000 {
//!         let Some(batch) = consumer.next().await? else { break };
//!         println!("{} rows of {:?}", batch.records.num_rows(), batch.records.schema());
//!     }
//!     // The coordinator must acknowledge all deliveries before the position is read.
//!     consumer.close().await?;
//!     job.position().await
//! }
//! ```

pub mod audit;
mod batch;
mod busy;
mod consumer;
pub mod digest;
mod error;
mod feature_cache;
mod fetch;
mod job;
mod metrics;
pub mod origin;
mod pieces;
pub mod probe;
mod receive_pool;
mod session;
mod settings;
mod shared_state;
mod state;
#[cfg(test)]
mod testing;
mod workers;

pub use batch::{Batch, BatchInfo};
pub use consumer::{Consumer, ConsumerView};
pub use error::ClientError;
pub use feedline_access::{BearerToken, Credentials, Tls, TlsFiles};
pub use job::Job;
pub use metrics::METRICS;
pub use settings::ClientSettings;
pub use workers::{GrpcWorkers, WorkerDirectory};
