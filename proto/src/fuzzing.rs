//! What a fuzzer needs of the messages: reading any bytes as any of them.

use feedline_core::cluster::messages::{
    ConsumerPlan, ConsumerReport, JobDetails, JobSpec, JobStatus, WorkerPlan, WorkerReport,
};
use feedline_core::view::ClusterView;
use prost::Message;

use crate::convert::WireError;
use crate::services::{FetchRequest, Frame};
use crate::wire;

/// Reads `bytes` as each kind of message that comes from the network, as its receiver does.
pub fn read_messages(bytes: &[u8]) {
    read::<wire::JobSpec, JobSpec>(bytes);
    read::<wire::WorkerReport, WorkerReport>(bytes);
    read::<wire::ConsumerReport, ConsumerReport>(bytes);
    read::<wire::WorkerPlan, WorkerPlan>(bytes);
    read::<wire::ConsumerPlan, ConsumerPlan>(bytes);
    read::<wire::JobDetails, JobDetails>(bytes);
    read::<wire::JobStatus, JobStatus>(bytes);
    read::<wire::ClusterView, ClusterView>(bytes);
    read::<wire::FetchRequest, FetchRequest>(bytes);
    read::<wire::FetchFrame, Frame>(bytes);
}

fn read<W: Message + Default, C: TryFrom<W, Error = WireError>>(bytes: &[u8]) {
    if let Ok(message) = W::decode(bytes) {
        // Whether it can be read does not matter; that it ends does.
        let _ = C::try_from(message);
    }
}
