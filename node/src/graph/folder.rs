//! The folder of a stored graph, opened with the flags of a command.

use std::time::Duration;

use feedline_data::tenants::TenantReads;
use feedline_graph::{GraphAccess, GraphError, GraphFolder, Stores};

use crate::cli::StoreArgs;
use crate::failure::Failure;
use crate::store_access;

/// Time for which a failed request to a store is retried.
const RETRY_BUDGET: Duration = Duration::from_secs(20);

/// Reads the description of a graph.
pub(super) async fn open(url: &str, stores: &StoreArgs) -> Result<GraphFolder, Failure> {
    let stores = Stores::with_access(store_access::for_preflight(stores, RETRY_BUDGET)?);
    let access = GraphAccess { stores, credentials: None, tenant: TenantReads::default() };
    GraphFolder::open(access, url).await.map_err(graph_failure)
}

/// Returns the failure for an error. An invalid setting is invalid usage.
pub(super) fn graph_failure(error: GraphError) -> Failure {
    match error {
        GraphError::Interrupted => Failure::Interrupted(error.to_string()),
        GraphError::Setting(_) => Failure::invalid_usage(error),
        GraphError::Corrupt { .. } | GraphError::File { .. } | GraphError::Source(_) => {
            Failure::failed(error)
        }
    }
}
