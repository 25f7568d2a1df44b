//! Tests of the decisions on the leader and on a follower.

use std::sync::atomic::{AtomicUsize, Ordering};

use feedline_proto::{CoordinatorReply, CoordinatorRequest};
use futures::future::join_all;
use tokio::sync::Notify;

use super::*;

/// A coordinator that answers requests for the view with a fixed result.
struct FixedCoordinator {
    result: Result<Vec<PoolDecision>, ServiceError>,
    requests: AtomicUsize,
    /// If set, the coordinator answers after a notification.
    release: Option<Arc<Notify>>,
}

#[async_trait]
impl CoordinatorService for FixedCoordinator {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        assert!(matches!(request, CoordinatorRequest::GetCluster {}), "{}", request.name());
        self.requests.fetch_add(1, Ordering::SeqCst);
        if let Some(release) = &self.release {
            release.notified().await;
        }
        let pools = self.result.clone()?;
        Ok(CoordinatorReply::GetCluster(ClusterView { pools, ..ClusterView::default() }))
    }
}

fn coordinator(result: Result<Vec<PoolDecision>, ServiceError>) -> Arc<FixedCoordinator> {
    Arc::new(FixedCoordinator { result, requests: AtomicUsize::new(0), release: None })
}

fn decision(pool: &str, wanted: u32, is_known: bool) -> PoolDecision {
    PoolDecision { pool: pool.to_owned(), present: 1, wanted, is_known }
}

fn decisions_of(own: &Arc<FixedCoordinator>, pools: &[&str]) -> LeaderDecisions {
    let pools = pools.iter().map(|pool| (*pool).to_owned()).collect();
    let own = Arc::clone(own) as Arc<dyn CoordinatorService>;
    LeaderDecisions::new(own, pools, |url| panic!("the leader is in this process, not at {url}"))
}

#[tokio::test]
async fn the_leader_returns_its_own_decision_for_the_pool() {
    let own = coordinator(Ok(vec![decision("spot", 7, true), decision("disk", 2, true)]));
    let decisions = decisions_of(&own, &["spot", "disk"]);
    assert_eq!(decisions.wanted_workers(Some("disk")).await, Ok(2));
    assert_eq!(decisions.wanted_workers(Some("spot")).await, Ok(7));
    let error = decisions.wanted_workers(None).await.unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (
            ServiceErrorKind::Invalid,
            "the metadata of the trigger names no pool: set `pool` to one of: spot, disk"
        )
    );
    let error = decisions.wanted_workers(Some("gpu")).await.unwrap_err();
    assert!(error.message.starts_with("no --scale-pool has the name `gpu`"), "{error}");
    let only = decisions_of(&coordinator(Ok(vec![decision("spot", 7, true)])), &["spot"]);
    assert_eq!(only.wanted_workers(None).await, Ok(7));
}

#[tokio::test]
async fn an_unknown_decision_is_unavailable() {
    for pools in [vec![decision("spot", 1, false)], Vec::new()] {
        let error = decisions_of(&coordinator(Ok(pools)), &["spot"]).wanted_workers(None).await.unwrap_err();
        assert_eq!(error.kind, ServiceErrorKind::Unavailable);
        assert!(error.message.contains("pool spot is not known yet"), "{error}");
    }
}

#[tokio::test]
async fn a_follower_returns_the_decision_of_the_leader() {
    let leader = coordinator(Ok(vec![decision("spot", 5, true)]));
    let own = coordinator(Err(ServiceError::not_leader("https://leader:7070")));
    let (connected, client) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&leader));
    let connections = Arc::clone(&connected);
    let decisions = LeaderDecisions::new(own, vec!["spot".to_owned()], move |url| {
        assert_eq!(url, "https://leader:7070");
        connections.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::clone(&client) as Arc<dyn CoordinatorService>)
    });
    assert_eq!(decisions.wanted_workers(None).await, Ok(5));
    tokio::time::pause();
    tokio::time::advance(MAX_AGE).await;
    assert_eq!(decisions.wanted_workers(None).await, Ok(5));
    assert_eq!(leader.requests.load(Ordering::SeqCst), 2);
    assert_eq!(connected.load(Ordering::SeqCst), 1, "the connection is kept");
}

#[tokio::test]
async fn without_a_leader_the_decision_is_unavailable() {
    let electing = ServiceError::new(ServiceErrorKind::Unavailable, "no leader has been elected");
    let error = decisions_of(&coordinator(Err(electing.clone())), &["spot"]).wanted_workers(None).await;
    assert_eq!(error, Err(electing));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_cached_for_a_second() {
    let own = coordinator(Ok(vec![decision("spot", 7, true)]));
    let decisions = decisions_of(&own, &["spot"]);
    for (advance_ms, requests) in [(0, 1), (999, 1), (1, 2), (500, 2)] {
        tokio::time::advance(Duration::from_millis(advance_ms)).await;
        assert_eq!(decisions.wanted_workers(None).await, Ok(7));
        assert_eq!(own.requests.load(Ordering::SeqCst), requests, "{advance_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_callers_share_one_request() {
    let release = Arc::new(Notify::new());
    let mut own = FixedCoordinator {
        result: Ok(vec![decision("spot", 7, true)]),
        requests: AtomicUsize::new(0),
        release: None,
    };
    own.release = Some(Arc::clone(&release));
    let own = Arc::new(own);
    let decisions = decisions_of(&own, &["spot"]);
    let callers = join_all((0..50).map(|_| decisions.wanted_workers(None)));
    let (answers, ()) = tokio::join!(callers, async { release.notify_one() });
    assert!(answers.iter().all(|answer| *answer == Ok(7)));
    assert_eq!(own.requests.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_does_not_answer_is_unavailable() {
    let own = Arc::new(FixedCoordinator {
        result: Ok(Vec::new()),
        requests: AtomicUsize::new(0),
        release: Some(Arc::new(Notify::new())),
    });
    let error = decisions_of(&own, &["spot"]).wanted_workers(None).await.unwrap_err();
    assert_eq!(error.message, "the leader of the coordinators did not answer within 3 s; retry");
}
