//! The gate of a coordinator whose cluster has a secret: whoever comes shows a token, and may do what it allows.

mod tickets;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use feedline_access::ticket::TicketOffice;
use feedline_access::token::Tokens;
use feedline_access::{Claims, Scope, Secret, now_s};
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, ServiceError,
    ServiceErrorKind, WorkerPlan, WorkerReport,
};
use feedline_data::mix::MixChange;
use feedline_data::position_history::StepId;
use feedline_data::view::ClusterView;
use feedline_proto::authenticator::{Authenticator, Authenticators};
use feedline_proto::{CoordinatorService, MemberStatus, MembersService, PeerService};

use self::tickets::IssuedTickets;
use crate::TenantView;

/// Tokens that are known to be good; more are checked anew.
const KNOWN_TOKENS: usize = 1024;
/// Tenants whose jobs are remembered; of more they are looked up again.
const KNOWN_TENANTS: usize = 1024;
/// Those who have to do with the rows of a job.
const OF_JOBS: [Scope; 4] = [Scope::Submit, Scope::Consume, Scope::Work, Scope::Observe];

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
    members: Arc<dyn MembersService>,
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
        members: Arc<dyn MembersService>,
    ) -> Arc<Self> {
        Arc::new(Self {
            tokens: Tokens::new(secret),
            office: Arc::new(TicketOffice::new(secret)),
            given: Arc::default(),
            known: Mutex::default(),
            service,
            tenants: Mutex::default(),
            peer,
            members,
        })
    }

    /// The doors behind which the services are.
    pub fn doors(self: &Arc<Self>) -> Authenticators {
        Authenticators { coordinator: self.clone(), peer: self.clone(), members: self.clone() }
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
        demand(&self.known(token)?.claims, &[Scope::Coordinate], "be a coordinator")?;
        Ok(Arc::clone(&self.peer))
    }
}

impl Authenticator<dyn MembersService> for TokenAuthenticator {
    fn enter(&self, token: Option<&str>) -> Result<Arc<dyn MembersService>, ServiceError> {
        let claims = self.known(token)?.claims;
        Ok(Arc::new(MembersView { inner: Arc::clone(&self.members), claims }))
    }
}

fn denied(message: impl Into<String>) -> ServiceError {
    ServiceError::new(ServiceErrorKind::Denied, message)
}

fn demand(claims: &Claims, scopes: &[Scope], what: &str) -> Result<(), ServiceError> {
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
    fn demand(&self, scopes: &[Scope], what: &str) -> Result<(), ServiceError> {
        demand(&self.claims, scopes, what)
    }

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
    async fn open_job(&self, spec: JobSpec) -> Result<JobId, ServiceError> {
        let spec = self.owned(spec);
        if self.claims.allows(&[Scope::Submit]) {
            return self.inner.open_job(spec).await;
        }
        self.demand(&[Scope::Consume], "open or join jobs")?;
        self.join(spec).await
    }

    async fn join_job(&self, spec: JobSpec) -> Result<JobId, ServiceError> {
        self.demand(&[Scope::Submit, Scope::Consume], "join jobs")?;
        self.join(self.owned(spec)).await
    }

    async fn cancel_job(&self, job: JobId) -> Result<(), ServiceError> {
        self.demand(&[Scope::Submit], "cancel jobs")?;
        self.inner.cancel_job(job).await
    }

    async fn set_weights(&self, job: JobId, weights: Vec<f64>) -> Result<MixChange, ServiceError> {
        self.demand(&[Scope::Submit], "change jobs")?;
        self.inner.set_weights(job, weights).await
    }

    async fn job_details(&self, job: JobId) -> Result<JobDetails, ServiceError> {
        self.demand(&OF_JOBS, "see jobs")?;
        self.inner.job_details(job).await
    }

    async fn job_status(&self, job: JobId) -> Result<JobStatus, ServiceError> {
        self.demand(&OF_JOBS, "see jobs")?;
        self.inner.job_status(job).await
    }

    async fn list_jobs(&self) -> Result<Vec<JobStatus>, ServiceError> {
        self.demand(&OF_JOBS, "see jobs")?;
        self.inner.list_jobs().await
    }

    async fn cluster(&self) -> Result<ClusterView, ServiceError> {
        self.demand(&[Scope::Observe, Scope::Submit], "see the cluster")?;
        self.inner.cluster().await
    }

    async fn manifest(&self, job: JobId) -> Result<Arc<Manifest>, ServiceError> {
        self.demand(&OF_JOBS, "see jobs")?;
        self.inner.manifest(job).await
    }

    async fn sync_worker(&self, report: WorkerReport) -> Result<WorkerPlan, ServiceError> {
        self.demand(&[Scope::Work], "be a worker")?;
        let plan = self.inner.sync_worker(report).await?;
        Ok(WorkerPlan { ticket_key: self.office.public_key().as_bytes().to_vec(), ..plan })
    }

    async fn sync_consumer(&self, report: ConsumerReport) -> Result<ConsumerPlan, ServiceError> {
        self.demand(&[Scope::Consume], "take rows")?;
        let (job, consumer, session) = (report.job, report.consumer, report.session);
        let plan = self.inner.sync_consumer(report).await?;
        let now_s = now_s();
        let make = || self.office.make(job, consumer, session, now_s);
        Ok(ConsumerPlan { ticket: self.given.ticket((job, consumer, session), now_s, make), ..plan })
    }

    async fn places(&self, job: JobId, step: StepId) -> Result<GroupPositions, ServiceError> {
        self.demand(&[Scope::Consume], "ask where consumers stand")?;
        self.inner.places(job, step).await
    }
}

/// What is said of coordinators as the holder of a token may use it.
struct MembersView {
    inner: Arc<dyn MembersService>,
    claims: Arc<Claims>,
}

impl MembersView {
    fn demand(&self) -> Result<(), ServiceError> {
        demand(&self.claims, &[Scope::Admin], "add and remove coordinators")
    }
}

#[async_trait]
impl MembersService for MembersView {
    /// Everybody may know where coordinators are: clients look for the one that leads.
    async fn members(&self) -> Result<Vec<MemberStatus>, ServiceError> {
        self.inner.members().await
    }

    async fn add_member(&self, url: &str) -> Result<Vec<MemberStatus>, ServiceError> {
        self.demand()?;
        self.inner.add_member(url).await
    }

    async fn remove_member(&self, url: &str) -> Result<Vec<MemberStatus>, ServiceError> {
        self.demand()?;
        self.inner.remove_member(url).await
    }
}

#[cfg(test)]
mod tests;
