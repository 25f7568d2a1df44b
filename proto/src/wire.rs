//! Generated messages, clients and servers. They do not leave this crate.

#![allow(missing_docs, unreachable_pub, reason = "generated; the .proto files are the documentation")]
#![allow(clippy::all, clippy::unwrap_used, reason = "generated")]

tonic::include_proto!("feedline.v1");

/// The protocol of KEDA.
pub mod externalscaler {
    tonic::include_proto!("externalscaler");
}
