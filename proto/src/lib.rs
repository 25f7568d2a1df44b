//! The wire: protobuf messages, their conversions from and to `core`, the layout of a batch, and the service traits
//! with their gRPC forms. The local form of a service is the trait object itself.
//!
//! Wire types do not leave this crate. It knows no coordinator, worker or client, only what they say to each other.

pub mod authenticator;
pub mod batch;
mod caller;
mod convert;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod grpc;
pub mod local;
pub mod rpc;
pub mod services;
mod wire;

pub use batch::{BatchEncoder, BatchLayout, decode_batch, encode_batch, output_schema};
pub use caller::Caller;
pub use convert::dataset::{decode_manifest, encode_manifest};
pub use services::{
    CoordinatorReply, CoordinatorRequest, CoordinatorService, FetchOpen, FetchRequest, Frame, MemberInfo,
    MemberStatus, PeerService, PieceHeader, SkippedRow, WorkerService,
};

/// Version of the messages. Client and server must speak the same.
pub const PROTOCOL_VERSION: u32 = 3;
