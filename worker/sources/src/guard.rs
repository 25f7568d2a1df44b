//! Keeps requests away from metadata services, whatever URLs, names and redirects lead there, and follows redirects only within
//! what pipelines may read. Addresses are looked at where they are connected to: a name may resolve to another one each time.
//!
//! What credentials are fetched with is not guarded: an instance's role is asked of such a service, as its operator wants.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::read_policy::{ReadPolicy, refused_host};
use feedline_data::tenants::TenantReads;
use feedline_data::urls::{UrlPolicy, is_metadata_address, metadata_host};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use url::{Host, Url};

/// Redirects that are followed one after the other.
const MOST_REDIRECTS: usize = 10;

/// Why a request was not made; trying again does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct GuardError(String);

/// The refusal among the causes of an error.
pub(crate) fn refused<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a GuardError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(refused) = error.downcast_ref() {
            return Some(refused);
        }
        next = error.source();
    }
    None
}

/// What requests of one client may lead to.
#[derive(Debug, Clone)]
pub(crate) struct RequestGuard {
    metadata_addresses: bool,
    /// Within these redirects are followed.
    redirects: UrlPolicy,
    /// And within these of the tenant.
    tenant: TenantReads,
    lookup: Arc<dyn HostResolver>,
}

/// Finds the addresses of a host.
#[async_trait]
pub(crate) trait HostResolver: fmt::Debug + Send + Sync {
    /// All of them, with any port.
    async fn addresses(&self, host: &str) -> io::Result<Vec<SocketAddr>>;
}

/// As the system finds them.
#[derive(Debug)]
struct SystemLookup;

#[async_trait]
impl HostResolver for SystemLookup {
    async fn addresses(&self, host: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.collect())
    }
}

impl RequestGuard {
    /// For what a pipeline names by a URL itself: redirects stay within what may be read.
    pub(crate) fn of_urls(reads: &ReadPolicy, tenant: &TenantReads) -> Self {
        Self { redirects: reads.urls.clone(), tenant: tenant.clone(), ..Self::of_stores(reads) }
    }

    /// For stores whose endpoint is the operator's or the cloud's: there it is theirs to say where an object lies.
    pub(crate) fn of_stores(reads: &ReadPolicy) -> Self {
        Self {
            metadata_addresses: reads.metadata_addresses,
            redirects: UrlPolicy::default(),
            tenant: TenantReads::default(),
            lookup: Arc::new(SystemLookup),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_lookup(self, lookup: Arc<dyn HostResolver>) -> Self {
        Self { lookup, ..self }
    }

    /// Looks at a URL as the client will understand it: it knows more forms of addresses than text shows.
    pub(crate) fn check(&self, url: &str) -> Result<(), GuardError> {
        let parsed =
            Url::parse(url).map_err(|error| GuardError(format!("the URL cannot be used: {error}")))?;
        match parsed.host() {
            Some(Host::Ipv4(address)) => self.check_address(address.into(), || address.to_string()),
            Some(Host::Ipv6(address)) => self.check_address(address.into(), || address.to_string()),
            _ => match metadata_host(parsed.as_str()) {
                Some(host) if !self.metadata_addresses => Err(GuardError(refused_host(host))),
                _ => Ok(()),
            },
        }
    }

    fn check_address(&self, address: IpAddr, shown: impl FnOnce() -> String) -> Result<(), GuardError> {
        if !self.metadata_addresses && is_metadata_address(address) {
            return Err(GuardError(refused_host(&shown())));
        }
        Ok(())
    }

    fn check_redirect(&self, url: &Url) -> Result<(), GuardError> {
        self.check(url.as_str())?;
        self.redirects
            .check_object(url.as_str())
            .and_then(|()| self.tenant.check_object(url.as_str()))
            .map_err(|sentence| GuardError(format!("the server sends on to another place: {sentence}")))
    }

    /// How the client follows redirects.
    pub(crate) fn redirects(&self) -> Policy {
        let guard = self.clone();
        Policy::custom(move |attempt| {
            if attempt.previous().len() > MOST_REDIRECTS {
                return attempt
                    .error(GuardError(format!("the server redirects more than {MOST_REDIRECTS} times")));
            }
            match guard.check_redirect(attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(refused) => attempt.error(refused),
            }
        })
    }

    /// The host's addresses, in an order that differs from time to time, so that all of a store's servers are used.
    async fn resolve(&self, host: &str) -> Result<Vec<SocketAddr>, Box<dyn std::error::Error + Send + Sync>> {
        let mut addresses = self.lookup.addresses(host).await?;
        for address in &addresses {
            self.check_address(address.ip(), || format!("{host}, which resolves to {},", address.ip()))?;
        }
        if !addresses.is_empty() {
            // Its keys are random.
            let first = RandomState::new().hash_one(()) as usize % addresses.len();
            addresses.rotate_left(first);
        }
        Ok(addresses)
    }
}

/// The client's resolver.
#[derive(Debug)]
pub(crate) struct GuardedResolver(pub(crate) RequestGuard);

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.0.clone();
        Box::pin(async move {
            let addresses = guard.resolve(name.as_str()).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests;
