//! The decisions of the leading coordinator on the number of workers. Every coordinator knows them: a follower asks the leader.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use feedline_coordinator::PoolDecision;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_data::view::ClusterView;
use feedline_proto::CoordinatorService;
use feedline_proto::grpc::WorkerDemand;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::time::{Instant, timeout};

#[cfg(test)]
mod tests;

/// Maximum age of a cached answer. The leader decides once per second.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Maximum wait for an answer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(3);

/// Connects to the coordinator at a URL.
type Connect = Box<dyn Fn(&str) -> Result<Arc<dyn CoordinatorService>, ServiceError> + Send + Sync>;
/// A request for the decisions. All callers share the answer.
type DecisionFetch = Shared<BoxFuture<'static, Result<Arc<Vec<PoolDecision>>, ServiceError>>>;

/// The decisions of the leader, with at most one request in flight.
pub(crate) struct LeaderDecisions {
    contact: Arc<LeaderContact>,
    /// The names of the pools.
    pools: Vec<String>,
    /// The last request, and the time at which it started.
    last: Mutex<Option<(Instant, DecisionFetch)>>,
}

/// The connection to the leader.
struct LeaderContact {
    /// The coordinator in this process.
    own: Arc<dyn CoordinatorService>,
    connect: Connect,
    /// The last leader in another process.
    leader: Mutex<Option<(String, Arc<dyn CoordinatorService>)>>,
}

impl LeaderDecisions {
    /// Reads the decisions from `own`, the coordinator in this process, or from the leader that it names.
    pub(crate) fn new(
        own: Arc<dyn CoordinatorService>,
        pools: Vec<String>,
        connect: impl Fn(&str) -> Result<Arc<dyn CoordinatorService>, ServiceError> + Send + Sync + 'static,
    ) -> Self {
        let contact = LeaderContact { own, connect: Box::new(connect), leader: Mutex::default() };
        Self { contact: Arc::new(contact), pools, last: Mutex::default() }
    }

    async fn decisions(&self) -> Result<Arc<Vec<PoolDecision>>, ServiceError> {
        let fetch = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let usable = last.as_ref().filter(|(started, fetch)| {
                let is_running = fetch.peek().is_none();
                is_running || started.elapsed() < MAX_AGE
            });
            match usable {
                Some((_, fetch)) => fetch.clone(),
                None => {
                    let fetch = Arc::clone(&self.contact).decisions().boxed().shared();
                    *last = Some((Instant::now(), fetch.clone()));
                    fetch
                }
            }
        };
        fetch.await
    }

    /// Returns the name of the pool, which may be omitted if there is only one.
    fn pool_name<'a>(&'a self, pool: Option<&'a str>) -> Result<&'a str, ServiceError> {
        let known = || self.pools.join(", ");
        let sentence = match (pool, self.pools.as_slice()) {
            (Some(pool), pools) if pools.iter().any(|known| known == pool) => return Ok(pool),
            (None, [only]) => return Ok(only.as_str()),
            (Some(pool), _) => {
                format!(
                    "no --scale-pool has the name `{pool}`: set `pool` in the metadata of the trigger to one of: {}",
                    known()
                )
            }
            (None, _) => {
                format!("the metadata of the trigger names no pool: set `pool` to one of: {}", known())
            }
        };
        Err(ServiceError::new(ServiceErrorKind::Invalid, sentence))
    }
}

#[async_trait]
impl WorkerDemand for LeaderDecisions {
    async fn wanted_workers(&self, pool: Option<&str>) -> Result<u32, ServiceError> {
        let pool = self.pool_name(pool)?;
        let decisions = self.decisions().await?;
        let decision = decisions.iter().find(|decision| decision.pool == pool && decision.is_known);
        decision.map(|decision| decision.wanted).ok_or_else(|| {
            unavailable(format!(
                "the number of workers that the jobs need of pool {pool} is not known yet: keep the present number and ask again"
            ))
        })
    }
}

impl LeaderContact {
    async fn decisions(self: Arc<Self>) -> Result<Arc<Vec<PoolDecision>>, ServiceError> {
        let view = timeout(FETCH_TIMEOUT, self.view()).await;
        let seconds = FETCH_TIMEOUT.as_secs();
        let late = |_| {
            unavailable(format!("the leader of the coordinators did not answer within {seconds} s; retry"))
        };
        Ok(Arc::new(view.map_err(late)??.pools))
    }

    async fn view(&self) -> Result<ClusterView, ServiceError> {
        match self.own.cluster().await {
            Err(ServiceError { leader: Some(url), .. }) => self.leader(&url)?.cluster().await,
            result => result,
        }
    }

    /// Returns a client of the leader at this URL.
    fn leader(&self, url: &str) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
        let mut leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, client)) = &*leader
            && known == url
        {
            return Ok(Arc::clone(client));
        }
        let client = (self.connect)(url)?;
        *leader = Some((url.to_owned(), Arc::clone(&client)));
        Ok(client)
    }
}

fn unavailable(sentence: String) -> ServiceError {
    ServiceError::new(ServiceErrorKind::Unavailable, sentence)
}
