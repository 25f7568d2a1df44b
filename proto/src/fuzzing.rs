//! What a fuzzer needs of the messages: reading any bytes as any of them, as whoever receives it does.

use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, WorkerPlan, WorkerReport,
};
use feedline_data::view::ClusterView;
use prost::Message;

use crate::convert::WireError;
use crate::convert::dataset::decode_manifest;
use crate::grpc::fuzzing::{read_answer, read_frame};
use crate::services::FetchRequest;
use crate::wire;
use crate::wire::index_chunk::Part;

#[cfg(test)]
mod tests;

/// Reads bytes as one message. Whether they can be read does not matter; that it ends does.
type Read = fn(&[u8]);

/// Every message that the services take or answer with, by its name.
const MESSAGES: &[(&str, Read)] = &[
    ("CancelJobResponse", decode::<wire::CancelJobResponse>),
    ("ClusterView", convert::<wire::ClusterView, ClusterView>),
    ("ConsumerPlan", convert::<wire::ConsumerPlan, ConsumerPlan>),
    ("ConsumerReport", convert::<wire::ConsumerReport, ConsumerReport>),
    ("DeliverResponse", decode::<wire::DeliverResponse>),
    ("FetchFrame", fetch_frame),
    ("FetchRequest", convert::<wire::FetchRequest, FetchRequest>),
    ("GetClusterRequest", decode::<wire::GetClusterRequest>),
    ("GroupPlaces", convert::<wire::GroupPlaces, GroupPositions>),
    ("HasIndexResponse", decode::<wire::HasIndexResponse>),
    ("IndexChunk", index_chunk),
    ("IndexRef", decode::<wire::IndexRef>),
    ("Introduction", decode::<wire::Introduction>),
    ("JobDetails", convert::<wire::JobDetails, JobDetails>),
    ("JobList", job_list),
    ("JobRef", decode::<wire::JobRef>),
    ("JobSpec", convert::<wire::JobSpec, JobSpec>),
    ("JobStatus", convert::<wire::JobStatus, JobStatus>),
    ("KeepIndexResponse", decode::<wire::KeepIndexResponse>),
    ("ListJobsRequest", decode::<wire::ListJobsRequest>),
    ("ListMembersRequest", decode::<wire::ListMembersRequest>),
    ("LocateRequest", decode::<wire::LocateRequest>),
    ("LocateResponse", decode::<wire::LocateResponse>),
    ("ManifestChunk", manifest_chunk),
    ("MemberList", decode::<wire::MemberList>),
    ("MemberRef", decode::<wire::MemberRef>),
    ("PlacesRequest", decode::<wire::PlacesRequest>),
    // What they hold is read by `feedline_raft`, which has a fuzzer of its own.
    ("RaftMessages", decode::<wire::RaftMessages>),
    ("MixChange", decode::<wire::MixChange>),
    ("SetWeightsRequest", decode::<wire::SetWeightsRequest>),
    ("WorkerPlan", convert::<wire::WorkerPlan, WorkerPlan>),
    ("WorkerReport", convert::<wire::WorkerReport, WorkerReport>),
];

/// Reads `bytes` as each message of the services, and as what comes in answer to a fetch.
pub fn read_messages(bytes: &[u8]) {
    for (_, read) in MESSAGES {
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
