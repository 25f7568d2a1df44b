//! Rejects requests to metadata services, whether by URL, host name or redirect, and rejects redirects to URLs that are not
//! allowed. The addresses of a host name are checked for each connection, because each resolution may return other addresses.
//!
//! Requests for credentials are not guarded, because the credentials of an instance come from a metadata service.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::read_policy::{ReadPolicy, metadata_host_error};
use feedline_data::tenants::TenantReads;
use feedline_data::urls::{UrlPolicy, is_metadata_address, metadata_host};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use url::{Host, Url};

use crate::causes;

/// Maximum number of consecutive redirects.
const MAX_REDIRECTS: usize = 10;

/// The reason why a request was rejected. A retry cannot succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct GuardError(String);

/// Finds a guard error among the causes of an error.
pub(crate) fn find_guard_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a GuardError> {
    causes::find(error)
}

/// The checks for all requests of one client.
#[derive(Debug, Clone)]
pub(crate) struct RequestGuard {
    metadata_addresses: bool,
    /// The URLs that the worker's policy allows redirects to.
    redirects: UrlPolicy,
    /// The permissions of the tenant, which also apply to redirects.
    tenant: TenantReads,
    resolver: Arc<dyn HostResolver>,
}

/// Resolves host names.
#[async_trait]
pub(crate) trait HostResolver: fmt::Debug + Send + Sync {
    /// Returns all addresses of a host. The port is arbitrary.
    async fn addresses(&self, host: &str) -> io::Result<Vec<SocketAddr>>;
}

/// Resolves host names with the system's resolver.
#[derive(Debug)]
struct SystemResolver;

#[async_trait]
impl HostResolver for SystemResolver {
    async fn addresses(&self, host: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.collect())
    }
}

impl RequestGuard {
    /// Creates a guard for web servers. Redirects must lead to allowed URLs.
    pub(crate) fn for_web(reads: &ReadPolicy, tenant: &TenantReads) -> Self {
        Self { redirects: reads.urls.clone(), tenant: tenant.clone(), ..Self::for_stores(reads) }
    }

    /// Creates a guard for object stores. Redirects may lead to any URL except metadata services.
    pub(crate) fn for_stores(reads: &ReadPolicy) -> Self {
        Self {
            metadata_addresses: reads.metadata_addresses,
            redirects: UrlPolicy::default(),
            tenant: TenantReads::default(),
            resolver: Arc::new(SystemResolver),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_resolver(self, resolver: Arc<dyn HostResolver>) -> Self {
        Self { resolver, ..self }
    }

    /// Checks a URL with the URL parser of the HTTP client, so that all notations of an address are recognized.
    pub(crate) fn check(&self, url: &str) -> Result<(), GuardError> {
        let parsed = Url::parse(url).map_err(|error| GuardError(format!("invalid URL: {error}")))?;
        match parsed.host() {
            Some(Host::Ipv4(address)) => self.check_address(address.into(), || address.to_string()),
            Some(Host::Ipv6(address)) => self.check_address(address.into(), || address.to_string()),
            _ => match metadata_host(parsed.as_str()) {
                Some(host) if !self.metadata_addresses => Err(GuardError(metadata_host_error(host))),
                _ => Ok(()),
            },
        }
    }

    fn check_address(&self, address: IpAddr, shown: impl FnOnce() -> String) -> Result<(), GuardError> {
        if !self.metadata_addresses && is_metadata_address(address) {
            return Err(GuardError(metadata_host_error(&shown())));
        }
        Ok(())
    }

    fn check_redirect(&self, url: &Url) -> Result<(), GuardError> {
        self.check(url.as_str())?;
        self.redirects
            .check_object(url.as_str())
            .and_then(|()| self.tenant.check_object(url.as_str()))
            .map_err(|reason| {
                GuardError(format!("the server redirects to a URL that is not allowed: {reason}"))
            })
    }

    /// The redirect policy of the HTTP client.
    pub(crate) fn redirect_policy(&self) -> Policy {
        let guard = self.clone();
        Policy::custom(move |attempt| {
            if attempt.previous().len() > MAX_REDIRECTS {
                return attempt
                    .error(GuardError(format!("the server redirects more than {MAX_REDIRECTS} times")));
            }
            match guard.check_redirect(attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(error) => attempt.error(error),
            }
        })
    }

    /// Resolves a host name and checks its addresses. The addresses are rotated randomly, to spread requests over the servers of a
    /// store.
    async fn resolve(&self, host: &str) -> Result<Vec<SocketAddr>, Box<dyn std::error::Error + Send + Sync>> {
        let mut addresses = self.resolver.addresses(host).await?;
        for address in &addresses {
            self.check_address(address.ip(), || format!("{host}, which resolves to {},", address.ip()))?;
        }
        if !addresses.is_empty() {
            // The keys of `RandomState` are random.
            let first = RandomState::new().hash_one(()) as usize % addresses.len();
            addresses.rotate_left(first);
        }
        Ok(addresses)
    }
}

/// The guarded resolver of the HTTP client.
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
