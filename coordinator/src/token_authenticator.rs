//! Authentication and authorization by token, for clusters with a secret.

mod permission;
mod tickets;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use feedline_access::{Claims, ClusterKeys, ClusterSecret, Scope, now_s};
use feedline_data::ids::JobId;
use feedline_data::messages::{ConsumerPlan, JobSpec, ServiceError, ServiceErrorKind, WorkerPlan};
use feedline_proto::authenticator::{Authenticator, Authenticators};
use feedline_proto::rpc;
use feedline_proto::{CoordinatorReply, CoordinatorRequest, CoordinatorService, PeerService};

use self::permission::{Guarded, denied, require};
use self::tickets::{TicketCache, TicketHolder};
use crate::TenantView;

/// Maximum number of cached verified tokens. Other tokens are verified again.
const MAX_CACHED_TOKENS: usize = 1024;
/// Maximum number of cached views of tenants. Other tenants look up their jobs again.
const MAX_CACHED_TENANTS: usize = 1024;

/// Authenticates callers by token.
pub struct TokenAuthenticator {
    secret: Arc<ClusterSecret>,
    ticket_cache: Arc<TicketCache<TicketHolder>>,
    gather_tickets: Arc<TicketCache<JobId>>,
    verified_tokens: Mutex<VerifiedTokens>,
    service: Arc<dyn CoordinatorService>,
    /// The service restricted to each tenant.
    tenants: Mutex<HashMap<String, Arc<TenantView>>>,
    peer: Guarded<dyn PeerService>,
}

/// Verified tokens. The expiry of a token is checked on each use.
#[derive(Default)]
struct VerifiedTokens {
    /// The keys that have verified the tokens.
    keys: Option<Arc<ClusterKeys>>,
    by_text: HashMap<String, VerifiedToken>,
}

impl VerifiedTokens {
    /// Forgets all tokens that other keys have verified.
    fn set_keys(&mut self, keys: &Arc<ClusterKeys>) {
        if self.keys.as_ref().is_none_or(|known| !Arc::ptr_eq(known, keys)) {
            self.keys = Some(Arc::clone(keys));
            self.by_text.clear();
        }
    }
}

/// The claims of a verified token.
#[derive(Clone)]
struct VerifiedToken {
    claims: Arc<Claims>,
    /// The service with the permissions of the token.
    view: Arc<AuthorizedCoordinator>,
}

impl TokenAuthenticator {
    /// Creates an authenticator for the services of a coordinator in a cluster with this secret.
    pub fn new(
        secret: Arc<ClusterSecret>,
        service: Arc<dyn CoordinatorService>,
        peer: Arc<dyn PeerService>,
    ) -> Arc<Self> {
        Arc::new(Self {
            secret,
            ticket_cache: Arc::default(),
            gather_tickets: Arc::default(),
            verified_tokens: Mutex::default(),
            service,
            tenants: Mutex::default(),
            peer: Guarded::new(peer),
        })
    }

    /// Returns the authenticators of the gRPC services.
    pub fn authenticators(self: &Arc<Self>) -> Authenticators {
        Authenticators { coordinator: self.clone(), peer: self.clone() }
    }

    /// Returns the service for workers in this process.
    pub fn for_workers(&self) -> Arc<dyn CoordinatorService> {
        let holder = "a worker of the coordinator's process".to_owned();
        self.view(Arc::new(Claims { holder, scopes: [Scope::Work].into(), tenant: None, expires_s: None }))
    }

    fn view(&self, claims: Arc<Claims>) -> Arc<AuthorizedCoordinator> {
        let inner = match &claims.tenant {
            Some(tenant) => self.tenant(tenant) as Arc<dyn CoordinatorService>,
            None => Arc::clone(&self.service),
        };
        Arc::new(AuthorizedCoordinator {
            inner: Guarded::new(inner),
            claims,
            secret: Arc::clone(&self.secret),
            ticket_cache: Arc::clone(&self.ticket_cache),
            gather_tickets: Arc::clone(&self.gather_tickets),
        })
    }

    fn tenant(&self, tenant: &str) -> Arc<TenantView> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = tenants.get(tenant) {
            return Arc::clone(view);
        }
        if tenants.len() >= MAX_CACHED_TENANTS {
            tenants.clear();
        }
        let view = Arc::new(TenantView::new(Arc::clone(&self.service), tenant));
        tenants.insert(tenant.to_owned(), Arc::clone(&view));
        view
    }

    fn verify(&self, token: Option<&str>) -> Result<VerifiedToken, ServiceError> {
        let Some(token) = token else {
            return Err(denied(
                "this cluster requires a token: pass one with --token-file or FEEDLINE_TOKEN",
            ));
        };
        let keys = self.secret.keys();
        let mut verified = self.verified_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        verified.set_keys(&keys);
        let is_valid = |found: &&VerifiedToken| found.claims.expires_s.is_none_or(|end| now_s() < end);
        if let Some(found) = verified.by_text.get(token).filter(is_valid) {
            return Ok(found.clone());
        }
        verified.by_text.remove(token);
        drop(verified);
        let claims = Arc::new(keys.tokens.check(token, now_s()).map_err(denied)?);
        let found = VerifiedToken { view: self.view(Arc::clone(&claims)), claims };
        let mut verified = self.verified_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        verified.set_keys(&keys);
        if verified.by_text.len() >= MAX_CACHED_TOKENS {
            verified.by_text.clear();
        }
        verified.by_text.insert(token.to_owned(), found.clone());
        Ok(found)
    }
}

impl Authenticator<dyn CoordinatorService> for TokenAuthenticator {
    fn authenticate(&self, token: Option<&str>) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
        Ok(self.verify(token)?.view)
    }

    fn allows_large_messages(&self, token: Option<&str>) -> bool {
        self.verify(token).is_ok_and(|verified| verified.claims.has_any_scope(&[Scope::Work]))
    }
}

impl Authenticator<dyn PeerService> for TokenAuthenticator {
    fn authenticate(&self, token: Option<&str>) -> Result<Arc<dyn PeerService>, ServiceError> {
        let permission = require(&self.verify(token)?.claims, rpc::PEER_ACCESS)?;
        Ok(Arc::clone(self.peer.get(&permission)))
    }
}

/// The coordinator service with the permissions of one token.
struct AuthorizedCoordinator {
    inner: Guarded<dyn CoordinatorService>,
    claims: Arc<Claims>,
    secret: Arc<ClusterSecret>,
    ticket_cache: Arc<TicketCache<TicketHolder>>,
    gather_tickets: Arc<TicketCache<JobId>>,
}

impl AuthorizedCoordinator {
    /// Sets the tenant of a job. For a token with a tenant, the inner service sets the tenant. For a token without a tenant,
    /// only administrators choose the tenant.
    fn with_tenant(&self, spec: JobSpec) -> JobSpec {
        if self.claims.tenant.is_some() || self.claims.has_any_scope(&[Scope::Admin]) {
            return spec;
        }
        JobSpec { tenant: String::new(), ..spec }
    }

    /// Adds the key that verifies tickets to the plan of a worker, and the tickets for requests to other workers.
    fn with_tickets(&self, mut plan: WorkerPlan) -> WorkerPlan {
        let (keys, now_s) = (self.secret.keys(), now_s());
        plan.ticket_key = keys.tickets.public_key().as_bytes().to_vec();
        for partitioned in &mut plan.partitioned_jobs {
            let job = partitioned.job;
            let issue = || keys.tickets.issue_gather(job, now_s);
            partitioned.ticket = self.gather_tickets.ticket(job, now_s, issue);
        }
        plan
    }

    /// Joins a job for a caller that may not open it.
    async fn join(&self, inner: &dyn CoordinatorService, spec: JobSpec) -> Result<JobId, ServiceError> {
        let name = spec.name.clone();
        inner.join_job(spec).await.map_err(|refusal| match refusal.kind {
            ServiceErrorKind::Denied => denied(format!(
                "the token of `{}` may only join open jobs, and job `{name}` is not open",
                self.claims.holder
            )),
            _ => refusal,
        })
    }
}

#[async_trait]
impl CoordinatorService for AuthorizedCoordinator {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        use {CoordinatorReply as Reply, CoordinatorRequest as Request};
        let inner = self.inner.get(&require(&self.claims, request.rpc().access)?);
        Ok(match request {
            Request::OpenJob { spec } if self.claims.has_any_scope(&[Scope::Submit]) => {
                Reply::OpenJob(inner.open_job(self.with_tenant(*spec)).await?)
            }
            Request::OpenJob { spec } => {
                Reply::OpenJob(self.join(inner.as_ref(), self.with_tenant(*spec)).await?)
            }
            Request::JoinJob { spec } => {
                Reply::JoinJob(self.join(inner.as_ref(), self.with_tenant(*spec)).await?)
            }
            Request::SyncWorker { report } => {
                let plan = inner.sync_worker(report).await?;
                Reply::SyncWorker(self.with_tickets(plan))
            }
            Request::SyncConsumer { report } => {
                let (job, consumer, session) = (report.job, report.consumer, report.session);
                let plan = inner.sync_consumer(report).await?;
                let now_s = now_s();
                let make = || self.secret.keys().tickets.issue(job, consumer, session, now_s);
                let ticket = self.ticket_cache.ticket((job, consumer, session), now_s, make);
                Reply::SyncConsumer(ConsumerPlan { ticket, ..plan })
            }
            request => inner.call(request).await?,
        })
    }
}

#[cfg(test)]
mod tests;
