//! Requests and replies of a coordinator, generated from the table, and the service that answers them.

use std::sync::Arc;

use async_trait::async_trait;
use feedline_access::Scope;
use feedline_data::checkpoint::StepId;
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, ServiceError,
    ServiceErrorKind, WorkerPlan, WorkerReport,
};
use feedline_data::mix::MixChange;
use feedline_data::view::ClusterView;

use super::table::{OTHER_RPCS, coordinator_rpcs};
use super::{
    Access, LOOKUP_RETRY_AFTER, MessageSize, REPORT_RETRY_AFTER, REQUEST_DEADLINE, Retry, Rpc, Tenancy,
    TenantRequest,
};
use crate::services::MemberStatus;

/// Scopes of callers that work with jobs.
const READ_JOBS_SCOPES: &[Scope] = &[Scope::Submit, Scope::Consume, Scope::Work, Scope::Observe];

/// A coordinator. The state machine, the client and every layer between them implement this method; callers use the typed
/// methods of `dyn CoordinatorService`.
///
/// After an error of kind `Unavailable`, the coordinator may have executed the request. All requests are idempotent, so a
/// caller may always retry.
#[async_trait]
pub trait CoordinatorService: Send + Sync {
    /// Executes a request and returns the reply of the same name.
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError>;
}

macro_rules! define {
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
        /// A request to a coordinator.
        #[derive(Debug, Clone)]
        #[allow(missing_docs, reason = "the documentation of a request describes its arguments")]
        pub enum CoordinatorRequest {
            $($($(#[$doc])* $name { $($arg: $type),* },)*)*
        }

        /// The reply to the request of the same name.
        #[derive(Debug)]
        #[allow(clippy::large_enum_variant, reason = "a reply is moved a few times and never stored")]
        pub enum CoordinatorReply {
            $($($(#[$doc])* $name($reply),)*)*
        }

        /// Indexes of the rows in the table.
        #[derive(Clone, Copy)]
        enum Row {
            $($($name,)*)*
        }

        impl CoordinatorRequest {
            /// The rules of all requests.
            const RPCS: &'static [Rpc] = &[$($(Rpc {
                path: concat!("/feedline.v1.", stringify!($service), "/", stringify!($name)),
                access: $access,
                max_request: $max_request,
                max_response: $max_response,
                deadline: Some($deadline),
                retry: $retry,
            },)*)*];

            /// The rules of this request.
            pub fn rpc(&self) -> &'static Rpc {
                let row = match self {
                    $($(Self::$name { .. } => Row::$name,)*)*
                };
                &Self::RPCS[row as usize]
            }

            /// Names of all requests in metrics.
            pub const NAMES: &'static [&'static str] = &[$($(stringify!($call),)*)*];

            /// Name of the request in metrics, such as `open_job`.
            pub fn name(&self) -> &'static str {
                match self {
                    $($(Self::$name { .. } => stringify!($call),)*)*
                }
            }

            /// What a caller that belongs to a tenant may do with this request.
            #[allow(unused_variables, reason = "a row uses only some arguments")]
            pub fn tenancy(&self) -> Tenancy<'_> {
                match self {
                    $($(Self::$name { $($arg),* } => $tenancy,)*)*
                }
            }
        }

        impl dyn CoordinatorService + '_ {
            $($(
                $(#[$doc])*
                ///
                /// # Errors
                /// Returns the error of the coordinator, or of a layer between the caller and the coordinator.
                pub async fn $call(&self, $($arg: impl Into<$type>),*) -> Result<$reply, ServiceError> {
                    match self.call(CoordinatorRequest::$name { $($arg: $arg.into()),* }).await? {
                        CoordinatorReply::$name(reply) => Ok(reply),
                        other => Err(wrong_reply(&other)),
                    }
                }
            )*)*
        }
    };
}

coordinator_rpcs!(define);

/// Returns the rules of the RPC with this path; `None` for an unknown method.
pub fn find(path: &str) -> Option<&'static Rpc> {
    CoordinatorRequest::RPCS.iter().chain(&OTHER_RPCS).find(|rpc| rpc.path == path)
}

/// Returns the error for a layer that has returned the reply to a different request.
fn wrong_reply(reply: &CoordinatorReply) -> ServiceError {
    ServiceError::new(
        ServiceErrorKind::Unavailable,
        format!("the coordinator returned an unexpected reply: {reply:?}; please report this bug"),
    )
}
