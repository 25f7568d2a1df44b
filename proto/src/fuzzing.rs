//! The entry point of the fuzz target `messages`. It decodes arbitrary bytes as each message type, in the same way as its
//! receiver.

use bytes::Bytes;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, WorkerPlan, WorkerReport,
};
use feedline_data::view::ClusterView;
use prost::Message;

use crate::convert::Wire;
use crate::convert::dataset::{decode_manifest, encode_manifest};
use crate::grpc::fuzzing::{read_answer, read_frame};
use crate::rpc::coordinator_rpcs;
use crate::services::{FetchRequest, GatherRequest};
use crate::wire;
use crate::wire::index_chunk::Part;

#[cfg(test)]
mod tests;

/// Decodes bytes as one message type. The call must return, even if the bytes are invalid.
type Decoder = fn(&[u8]);

/// Generates an entry for each request and reply in the table of RPCs. An entry decodes the message.
macro_rules! decoders {
    ($($mode:ident $service:ident { $(
        $(#[$doc:meta])*
        $name:ident {
            call: $call:ident($($arg:ident: $type:ty),*) -> $reply:ty,
            $(wire: $rpc:ident($in:ident) -> $out:ident,)?
            access: $access:expr,
            tenancy: $tenancy:expr,
            sizes: ($max_request:expr, $max_response:expr),
            deadline: $deadline:expr, retry: $retry:expr,
        }
    )* })*) => {
        /// All messages in the table of RPCs, by name.
        const DECODERS: &[(&str, Decoder)] = &[$($($(
            (stringify!($in), decode::<wire::$in>),
            (stringify!($out), decode::<wire::$out>),
        )?)*)*];
    };
}

coordinator_rpcs!(decoders);

/// Messages that are also converted to types of `core`, and messages of services without a table, by name.
const MESSAGES: &[(&str, Decoder)] = &[
    ("ClusterView", convert::<wire::ClusterView, ClusterView>),
    ("ConsumerPlan", convert::<wire::ConsumerPlan, ConsumerPlan>),
    ("ConsumerReport", convert::<wire::ConsumerReport, ConsumerReport>),
    ("DeliverResponse", decode::<wire::DeliverResponse>),
    ("FetchFrame", fetch_frame),
    ("FetchRequest", convert::<wire::FetchRequest, FetchRequest>),
    ("GatherRequest", convert::<wire::GatherRequest, GatherRequest>),
    ("GroupPositions", convert::<wire::GroupPositions, GroupPositions>),
    ("HasIndexResponse", decode::<wire::HasIndexResponse>),
    ("IndexChunk", index_chunk),
    ("IndexRef", decode::<wire::IndexRef>),
    ("Introduction", decode::<wire::Introduction>),
    ("JobDetails", convert::<wire::JobDetails, JobDetails>),
    ("JobList", convert::<wire::JobList, Vec<JobStatus>>),
    ("JobSpec", convert::<wire::JobSpec, JobSpec>),
    ("JobStatus", convert::<wire::JobStatus, JobStatus>),
    ("JoinResponse", decode::<wire::JoinResponse>),
    ("StoreIndexResponse", decode::<wire::StoreIndexResponse>),
    ("LocateRequest", decode::<wire::LocateRequest>),
    ("LocateResponse", decode::<wire::LocateResponse>),
    ("ManifestChunk", manifest_chunk),
    // `feedline_raft` decodes their content and has its own fuzz target.
    ("RaftMessages", decode::<wire::RaftMessages>),
    ("WorkerPlan", convert::<wire::WorkerPlan, WorkerPlan>),
    ("WorkerReport", convert::<wire::WorkerReport, WorkerReport>),
];

/// Decodes `bytes` as each message type of the services, and as the response to a fetch.
pub fn read_messages(bytes: &[u8]) {
    for (_, read) in DECODERS.iter().chain(MESSAGES) {
        read(bytes);
    }
    read_answer(bytes);
}

/// Encodes a job, and a manifest in each message that contains one, by name. The messages are the seeds of the fuzz target.
pub fn seed_messages(spec: JobSpec, manifest: &Manifest) -> Vec<(&'static str, Vec<u8>)> {
    let spec: wire::JobSpec = spec.into_wire();
    let manifest = Bytes::from(encode_manifest(manifest));
    let index_chunk = wire::IndexChunk { part: Some(Part::Data(manifest.clone())) };
    let packed = wire::PackedChunk { offset: 1, bytes: 3, lz4: lz4_flex::block::compress(b"abc").into() };
    let frame = wire::FetchFrame { frame: Some(wire::fetch_frame::Frame::Packed(packed)) }.encode_to_vec();
    let header = [&[0][..], &(frame.len() as u32).to_be_bytes()].concat();
    vec![
        ("job_spec", spec.encode_to_vec()),
        ("index_chunk", index_chunk.encode_to_vec()),
        ("manifest_chunk", wire::ManifestChunk { data: manifest }.encode_to_vec()),
        ("fetch_response", [header, frame].concat()),
    ]
}

fn decode<W: Message + Default>(bytes: &[u8]) {
    drop(W::decode(bytes));
}

fn convert<W: Message + Default, C: Wire<W>>(bytes: &[u8]) {
    if let Ok(message) = W::decode(bytes) {
        drop(C::from_wire(message, "fuzz"));
    }
}

fn fetch_frame(bytes: &[u8]) {
    if let Ok(message) = wire::FetchFrame::decode(bytes) {
        read_frame(message);
    }
}

/// One chunk may contain a whole manifest.
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
