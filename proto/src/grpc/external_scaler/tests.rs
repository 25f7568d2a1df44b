//! Tests of the service for KEDA over a loopback connection.

use std::future::pending;
use std::time::Duration;

use feedline_data::messages::ServiceErrorKind;
use http::uri::PathAndQuery;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::super::serve;
use super::*;
use crate::wire::externalscaler::external_scaler_client::ExternalScalerClient;

/// Timeout that is longer than every test, so that a hang fails the test.
const PATIENCE: Duration = Duration::from_secs(20);

/// Wants seven workers of the pool `spot`, and does not know the number of other pools.
struct FixedDemand;

#[async_trait]
impl WorkerDemand for FixedDemand {
    async fn wanted_workers(&self, pool: Option<&str>) -> Result<u32, ServiceError> {
        match pool {
            Some("spot") => Ok(7),
            None => Ok(3),
            Some(_) => Err(ServiceError::new(ServiceErrorKind::Unavailable, "the demand is unknown")),
        }
    }
}

struct LoopbackServer {
    channel: Channel,
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

impl Drop for LoopbackServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn start() -> LoopbackServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let routes = external_scaler_routes(Arc::new(FixedDemand), stop.clone());
    let task = tokio::spawn(serve(listener, routes, pending()));
    LoopbackServer { channel: Endpoint::from_shared(url).unwrap().connect_lazy(), stop, task }
}

fn scaled_object(metadata: &[(&str, &str)]) -> ScaledObjectRef {
    let scaler_metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    ScaledObjectRef {
        name: "workers".to_owned(),
        namespace: "ml".to_owned(),
        scaler_metadata: scaler_metadata.collect(),
    }
}

fn metrics_request(metric_name: &str, metadata: &[(&str, &str)]) -> GetMetricsRequest {
    let scaled_object_ref = Some(scaled_object(metadata));
    GetMetricsRequest { scaled_object_ref, metric_name: metric_name.to_owned() }
}

#[tokio::test]
async fn the_metric_is_the_wanted_number_of_workers_with_the_target_one() {
    let server = start().await;
    let mut keda = ExternalScalerClient::new(server.channel.clone());
    assert!(keda.is_active(scaled_object(&[])).await.unwrap().into_inner().result);
    let spec = keda.get_metric_spec(scaled_object(&[("pool", "spot")])).await.unwrap().into_inner();
    let expected =
        MetricSpec { metric_name: "feedline_workers".to_owned(), target_size: 1, target_size_float: 1.0 };
    assert_eq!(spec.metric_specs, [expected]);
    let request = metrics_request("feedline_workers", &[("pool", "spot")]);
    let metrics = keda.get_metrics(request).await.unwrap().into_inner();
    let expected =
        MetricValue { metric_name: "feedline_workers".to_owned(), metric_value: 7, metric_value_float: 7.0 };
    assert_eq!(metrics.metric_values, [expected]);
}

#[tokio::test]
async fn the_trigger_may_name_the_metric_and_omit_the_pool() {
    let server = start().await;
    let mut keda = ExternalScalerClient::new(server.channel.clone());
    let metadata = [("metricName", "spot_workers")];
    let spec = keda.get_metric_spec(scaled_object(&metadata)).await.unwrap().into_inner();
    assert_eq!(spec.metric_specs[0].metric_name, "spot_workers");
    let metrics = keda.get_metrics(metrics_request("", &metadata)).await.unwrap().into_inner();
    assert_eq!(
        (metrics.metric_values[0].metric_name.as_str(), metrics.metric_values[0].metric_value),
        ("spot_workers", 3)
    );
}

#[tokio::test]
async fn an_unknown_number_is_unavailable_with_the_reason() {
    let server = start().await;
    let mut keda = ExternalScalerClient::new(server.channel.clone());
    let error = keda.get_metrics(metrics_request("feedline_workers", &[("pool", "disk")])).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "the demand is unknown"));
}

#[tokio::test]
async fn the_stream_of_the_activity_stays_open_until_the_server_stops() {
    let server = start().await;
    let mut keda = ExternalScalerClient::new(server.channel.clone());
    let mut active = keda.stream_is_active(scaled_object(&[])).await.unwrap().into_inner();
    assert!(active.message().await.unwrap().unwrap().result);
    assert!(active.message().now_or_never().is_none(), "the stream is open");
    server.stop.cancel();
    let ended = timeout(PATIENCE, active.message()).await.expect("the stream ends");
    assert_eq!(ended.unwrap(), None);
}

#[tokio::test]
async fn other_methods_are_unimplemented() {
    let server = start().await;
    let mut client = tonic::client::Grpc::new(server.channel.clone());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<ScaledObjectRef, GetMetricSpecResponse>::default();
    let path = PathAndQuery::from_static("/externalscaler.ExternalScaler/StreamMetricSpec");
    let error = client.unary(Request::new(scaled_object(&[])), path, codec).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
}
