//! KEDA's protocol for external scalers: tells KEDA the wanted number of workers of a pool.
//!
//! The trigger of a ScaledObject selects the pool with `pool`, and may rename the metric with `metricName`. The target of the
//! metric is 1 for each worker, so that its value is the number of workers.

use std::collections::HashMap;
use std::sync::Arc;

use feedline_data::messages::ServiceError;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status, async_trait};

use super::errors::to_status;
use crate::wire::externalscaler::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use crate::wire::externalscaler::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};

#[cfg(test)]
mod tests;

/// Key of the pool in the metadata of a trigger.
const POOL_KEY: &str = "pool";
/// Key of the metric's name in the metadata of a trigger.
const METRIC_KEY: &str = "metricName";
/// Name of the metric without this key.
const DEFAULT_METRIC: &str = "feedline_workers";
/// Maximum size of a request.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// The wanted numbers of workers of a cluster.
#[async_trait]
pub trait WorkerDemand: Send + Sync {
    /// Returns the wanted number of workers of a pool. Without a name, the cluster must have only one pool.
    ///
    /// # Errors
    /// Returns `Unavailable` while the number is unknown, and `Invalid` for a pool that is not scaled.
    async fn wanted_workers(&self, pool: Option<&str>) -> Result<u32, ServiceError>;
}

/// The routes of a server for KEDA. Open streams end when `stop` is cancelled.
pub fn external_scaler_routes(demand: Arc<dyn WorkerDemand>, stop: CancellationToken) -> Routes {
    let server = ExternalScalerServer::new(ExternalScalerAdapter { demand, stop });
    Routes::new(server.max_decoding_message_size(MAX_REQUEST_BYTES))
}

/// Answers KEDA.
struct ExternalScalerAdapter {
    demand: Arc<dyn WorkerDemand>,
    stop: CancellationToken,
}

fn metric_name(metadata: &HashMap<String, String>) -> String {
    metadata.get(METRIC_KEY).filter(|name| !name.is_empty()).map_or(DEFAULT_METRIC, String::as_str).to_owned()
}

#[async_trait]
impl ExternalScaler for ExternalScalerAdapter {
    type StreamIsActiveStream = BoxStream<'static, Result<IsActiveResponse, Status>>;

    /// A pool is always active, because it has at least one worker.
    async fn is_active(&self, _: Request<ScaledObjectRef>) -> Result<Response<IsActiveResponse>, Status> {
        Ok(Response::new(IsActiveResponse { result: true }))
    }

    async fn stream_is_active(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        let active = stream::once(async { Ok(IsActiveResponse { result: true }) }).chain(stream::pending());
        let stopped = self.stop.clone().cancelled_owned();
        Ok(Response::new(active.take_until(stopped.boxed()).boxed()))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let metric_name = metric_name(&request.into_inner().scaler_metadata);
        let spec = MetricSpec { metric_name, target_size: 1, target_size_float: 1.0 };
        Ok(Response::new(GetMetricSpecResponse { metric_specs: vec![spec] }))
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let GetMetricsRequest { scaled_object_ref, metric_name: requested } = request.into_inner();
        let metadata = scaled_object_ref.unwrap_or_default().scaler_metadata;
        let pool = metadata.get(POOL_KEY).map(String::as_str).filter(|pool| !pool.is_empty());
        let workers = self.demand.wanted_workers(pool).await.map_err(to_status)?;
        let metric_name = if requested.is_empty() { metric_name(&metadata) } else { requested };
        let value = MetricValue {
            metric_name,
            metric_value: i64::from(workers),
            metric_value_float: f64::from(workers),
        };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }
}
