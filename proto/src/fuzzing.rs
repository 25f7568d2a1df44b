//! What a fuzzer needs of the messages: reading any bytes as any of them, as whoever receives it does.

use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, WorkerPlan, WorkerReport,
};
use feedline_data::view::ClusterView;
use prost::Message;

use crate::convert::WireError;
use crate::convert::dataset::decode_manifest;
use crate::grpc::fuzzing::{read_answer, read_frame};
use crate::rpc::coordinator_rpcs;
use crate::services::FetchRequest;
use crate::wire;
use crate::wire::index_chunk::Part;

#[cfg(test)]
mod tests;

/// Reads bytes as one message. Whether they can be read does not matter; that it ends does.
type Read = fn(&[u8]);

/// Makes the entries of all requests and replies in the table of RPCs: each is decoded.
macro_rules! decoders {
    ($($mode:ident $service:ident { $(
        $(#[$doc:meta])*
        $name:ident {
            call: $call:ident($($arg:ident: $type:ty),*) -> $reply:ty,
            $(wire: $rpc:ident($in:ident) -> $out:ident,)?
            access: $access:expr,
            tenancy: $tenancy:expr,
            rules: ($kind:expr, $max_request:expr, $max_response:expr),
            deadline: $deadline:expr, retry: $retry:expr,
        }
    )* })*) => {
        /// Every message in the table of RPCs, by its name.
        const DECODERS: &[(&str, Read)] = &[$($($(
            (stringify!($in), decode::<wire::$in>),
            (stringify!($out), decode::<wire::$out>),
        )?)*)*];
    };
}

coordinator_rpcs!(decoders);

/// Messages that are read further than their protobuf form, and those of services without a table, by name.
const MESSAGES: &[(&str, Read)] = &[
    ("ClusterView", convert::<wire::ClusterView, ClusterView>),
    ("ConsumerPlan", convert::<wire::ConsumerPlan, ConsumerPlan>),
    ("ConsumerReport", convert::<wire::ConsumerReport, ConsumerReport>),
    ("DeliverResponse", decode::<wire::DeliverResponse>),
    ("FetchFrame", fetch_frame),
    ("FetchRequest", convert::<wire::FetchRequest, FetchRequest>),
    ("GroupPlaces", convert::<wire::GroupPlaces, GroupPositions>),
    ("HasIndexResponse", decode::<wire::HasIndexResponse>),
    ("IndexChunk", index_chunk),
    ("IndexRef", decode::<wire::IndexRef>),
    ("Introduction", decode::<wire::Introduction>),
    ("JobDetails", convert::<wire::JobDetails, JobDetails>),
    ("JobList", job_list),
    ("JobSpec", convert::<wire::JobSpec, JobSpec>),
    ("JobStatus", convert::<wire::JobStatus, JobStatus>),
    ("KeepIndexResponse", decode::<wire::KeepIndexResponse>),
    ("LocateRequest", decode::<wire::LocateRequest>),
    ("LocateResponse", decode::<wire::LocateResponse>),
    ("ManifestChunk", manifest_chunk),
    // What they hold is read by `feedline_raft`, which has a fuzzer of its own.
    ("RaftMessages", decode::<wire::RaftMessages>),
    ("WorkerPlan", convert::<wire::WorkerPlan, WorkerPlan>),
    ("WorkerReport", convert::<wire::WorkerReport, WorkerReport>),
];

/// Reads `bytes` as each message of the services, and as what comes in answer to a fetch.
pub fn read_messages(bytes: &[u8]) {
    for (_, read) in DECODERS.iter().chain(MESSAGES) {
        read(bytes);
    }
    read_answer(bytes);
}

fn decode<W: Message + Default>(bytes: &[u8]) {
    drop(W::decode(bytes));
}

fn convert<W: Message + Default, C: TryFrom<W, Error = WireError>>(bytes: &[u8]) {
    if let Ok(message) = W::decode(bytes) {
        drop(C::try_from(message));
    }
}

fn job_list(bytes: &[u8]) {
    if let Ok(list) = wire::JobList::decode(bytes) {
        list.jobs.into_iter().for_each(|job| drop(JobStatus::try_from(job)));
    }
}

fn fetch_frame(bytes: &[u8]) {
    if let Ok(message) = wire::FetchFrame::decode(bytes) {
        read_frame(message);
    }
}

/// One chunk may be all of a manifest.
fn manifest_chunk(bytes: &[u8]) {
    if let Ok(chunk) = wire::ManifestChunk::decode(bytes) {
        drop(decode_manifest(&chunk.data));
    }
}

fn index_chunk(bytes: &[u8]) {
    if let Ok(wire::IndexChunk { part: Some(Part::Data(data)) }) = wire::IndexChunk::decode(bytes) {
        drop(decode_manifest(&data));
    }
}
