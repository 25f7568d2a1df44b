//! Wire protocol: protobuf messages, their conversion from and to the types of `core`, the layout of a batch, and the service
//! traits with their gRPC clients and servers. A service in the same process is called through its trait object.
//!
//! Wire types do not leave this crate. The crate does not depend on coordinator, worker or client.

pub mod authenticator;
pub mod batch;
mod caller;
mod convert;
#[doc(hidden)]
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
    CachedFeature, CoordinatorReply, CoordinatorRequest, CoordinatorService, FeatureRowsRequest, FetchOpen,
    FetchRequest, Frame, GatherRequest, MemberInfo, MemberStatus, PeerService, PieceHeader, SkippedRow,
    WorkerService,
};

/// Version of the messages. Client and server must use the same version. A server rejects a request of another version as
/// unavailable, because a rolling upgrade may replace the client or the server.
pub const PROTOCOL_VERSION: u32 = 3;
