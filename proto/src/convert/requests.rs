//! Arguments and replies of the RPCs of a coordinator.

use feedline_data::checkpoint::StepId;
use feedline_data::ids::JobId;
use feedline_data::messages::JobStatus;

use super::{empty, message, tuple, wrapper};
use crate::services::MemberStatus;

message!(MemberStatus, "member", { id, url, is_leader, is_voter, is_reachable, unconfirmed_entries });
wrapper!(Vec<JobStatus> => JobList { jobs });
wrapper!(Vec<MemberStatus> => MemberList { members });
empty!(CancelJobResponse, ListJobsRequest, GetClusterRequest, ListMembersRequest);
wrapper!(JobId => JobRef { job });
wrapper!(String => MemberRef { url });
wrapper!(String => TransferLeaderRequest { id });
tuple!((JobId, Vec<f64>) => SetWeightsRequest { job, weights });
tuple!((JobId, StepId) => GetPositionsRequest { job, step });
