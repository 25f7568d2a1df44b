//! The gate of a coordinator whose cluster has a secret: whoever comes shows a token, and may do what it allows.

mod tickets;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use feedline_access::ticket::TicketOffice;
use feedline_access::token::Tokens;
use feedline_access::{Claims, Scope, Secret, now_s};
use feedline_data::ids::JobId;
use feedline_data::messages::{ConsumerPlan, JobSpec, ServiceError, ServiceErrorKind, WorkerPlan};
use feedline_proto::authenticator::{Authenticator, Authenticators};
use feedline_proto::rpc::{self, Access};
use feedline_proto::{CoordinatorReply, CoordinatorRequest, CoordinatorService, PeerService};

use self::tickets::IssuedTickets;
use crate::TenantView;

/// Tokens that are known to be good; more are checked anew.
const KNOWN_TOKENS: usize = 1024;
/// Tenants whose jobs are remembered; of more they are looked up again.
const KNOWN_TENANTS: usize = 1024;

/// Lets in whoever has a token.
pub struct TokenAuthenticator {
    tokens: Tokens,
    office: Arc<TicketOffice>,
    given: Arc<IssuedTickets>,
    /// What good tokens say; when they expire is looked at each time.
    known: Mutex<HashMap<String, Known>>,
    service: Arc<dyn CoordinatorService>,
    /// The service as tenants see it.
    tenants: Mutex<HashMap<String, Arc<TenantView>>>,
    peer: Arc<dyn PeerService>,
}

/// A token that was found to be good.
#[derive(Clone)]
struct Known {
    claims: Arc<Claims>,
    /// The service as its holder may use it.
    view: Arc<dyn CoordinatorService>,
}

impl TokenAuthenticator {
    /// The gate of a cluster with this secret, before these services of a coordinator.
    pub fn new(
        secret: &Secret,
        service: Arc<dyn CoordinatorService>,
        peer: Arc<dyn PeerService>,
    ) -> Arc<Self> {
        Arc::new(Self {
            tokens: Tokens::new(secret),
            office: Arc::new(TicketOffice::new(secret)),
            given: Arc::default(),
            known: Mutex::default(),
            service,
            tenants: Mutex::default(),
            peer,
        })
    }

    /// The doors behind which the services are.
    pub fn doors(self: &Arc<Self>) -> Authenticators {
        Authenticators { coordinator: self.clone(), peer: self.clone() }
    }

    /// The service as workers of this process use it.
    pub fn for_workers(&self) -> Arc<dyn CoordinatorService> {
        let holder = "a worker of the coordinator's process".to_owned();
        self.view(Arc::new(Claims { holder, scopes: [Scope::Work].into(), tenant: None, expires_s: None }))
    }

    fn view(&self, claims: Arc<Claims>) -> Arc<dyn CoordinatorService> {
        let inner = match &claims.tenant {
            Some(tenant) => self.tenant(tenant),
            None => Arc::clone(&self.service),
        };
        Arc::new(View { inner, claims, office: Arc::clone(&self.office), given: Arc::clone(&self.given) })
    }

    fn tenant(&self, tenant: &str) -> Arc<dyn CoordinatorService> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = tenants.get(tenant) {
            return view.clone();
        }
        if tenants.len() >= KNOWN_TENANTS {
            tenants.clear();
        }
        let view = Arc::new(TenantView::new(Arc::clone(&self.service), tenant));
        tenants.insert(tenant.to_owned(), view.clone());
        view
    }

    fn known(&self, token: Option<&str>) -> Result<Known, ServiceError> {
        let Some(token) = token else {
            return Err(denied(
                "this cluster asks for a token: give one with --token-file, or in FEEDLINE_TOKEN",
            ));
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_good = |known: &&Known| known.claims.expires_s.is_none_or(|end| now_s() < end);
        if let Some(found) = known.get(token).filter(is_good) {
            return Ok(found.clone());
        }
        known.remove(token);
        drop(known);
        let claims = Arc::new(self.tokens.check(token, now_s()).map_err(denied)?);
        let found = Known { view: self.view(Arc::clone(&claims)), claims };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_TOKENS {
            known.clear();
        }
        known.insert(token.to_owned(), found.clone());
        Ok(found)
    }
}

impl Authenticator<dyn CoordinatorService> for TokenAuthenticator {
    fn enter(&self, token: Option<&str>) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
        Ok(self.known(token)?.view)
    }

    fn admits_large(&self, token: Option<&str>) -> bool {
        self.known(token).is_ok_and(|known| known.claims.allows(&[Scope::Work]))
    }
}

impl Authenticator<dyn PeerService> for TokenAuthenticator {
    fn enter(&self, token: Option<&str>) -> Result<Arc<dyn PeerService>, ServiceError> {
        demand(&self.known(token)?.claims, rpc::PEER_ACCESS)?;
        Ok(Arc::clone(&self.peer))
    }
}

fn denied(message: impl Into<String>) -> ServiceError {
    ServiceError::new(ServiceErrorKind::Denied, message)
}

/// Refuses a caller whose token does not give access.
fn demand(claims: &Claims, access: Access) -> Result<(), ServiceError> {
    let (scopes, what) = match access {
        Access::Scopes(scopes, what) => (scopes, what),
        // The token was checked already.
        Access::AnyToken | Access::Open => return Ok(()),
        Access::Ticket => return Err(denied("only workers take tickets; send the request to a worker")),
    };
    if claims.allows(scopes) {
        return Ok(());
    }
    let names: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
    Err(denied(format!(
        "the token of `{}` does not allow to {what}, which takes the scope {}",
        claims.holder,
        names.join(" or ")
    )))
}

/// A coordinator's service as the holder of a token may use it.
struct View {
    inner: Arc<dyn CoordinatorService>,
    claims: Arc<Claims>,
    office: Arc<TicketOffice>,
    given: Arc<IssuedTickets>,
}

impl View {
    /// The job as its holder's: of the token's tenant, which the service behind sees to, or else of the default one. Only who
    /// administers the cluster says whose it is.
    fn owned(&self, spec: JobSpec) -> JobSpec {
        if self.claims.tenant.is_some() || self.claims.allows(&[Scope::Admin]) {
            return spec;
        }
        JobSpec { tenant: String::new(), ..spec }
    }

    /// Joins a job for who may not open it. Whether it is open is decided where it is joined, and nowhere before.
    async fn join(&self, spec: JobSpec) -> Result<JobId, ServiceError> {
        let name = spec.name.clone();
        self.inner.join_job(spec).await.map_err(|refusal| match refusal.kind {
            ServiceErrorKind::Denied => denied(format!(
                "the token of `{}` allows to join jobs and not to open them, and no job `{name}` is open",
                self.claims.holder
            )),
            _ => refusal,
        })
    }
}

#[async_trait]
impl CoordinatorService for View {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        use {CoordinatorReply as Reply, CoordinatorRequest as Request};
        demand(&self.claims, request.rpc().access)?;
        Ok(match request {
            Request::OpenJob { spec } if self.claims.allows(&[Scope::Submit]) => {
                Reply::OpenJob(self.inner.open_job(self.owned(*spec)).await?)
            }
            Request::OpenJob { spec } => Reply::OpenJob(self.join(self.owned(*spec)).await?),
            Request::JoinJob { spec } => Reply::JoinJob(self.join(self.owned(*spec)).await?),
            Request::SyncWorker { report } => {
                let plan = self.inner.sync_worker(report).await?;
                let ticket_key = self.office.public_key().as_bytes().to_vec();
                Reply::SyncWorker(WorkerPlan { ticket_key, ..plan })
            }
            Request::SyncConsumer { report } => {
                let (job, consumer, session) = (report.job, report.consumer, report.session);
                let plan = self.inner.sync_consumer(report).await?;
                let now_s = now_s();
                let make = || self.office.make(job, consumer, session, now_s);
                let ticket = self.given.ticket((job, consumer, session), now_s, make);
                Reply::SyncConsumer(ConsumerPlan { ticket, ..plan })
            }
            request => self.inner.call(request).await?,
        })
    }
}

#[cfg(test)]
mod tests;
