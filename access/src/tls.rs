//! Connections on which both ends have proved who they are, with certificates that may change while they are used.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::CryptoProvider;
use rustls::server::{WantsServerCert, WebPkiClientVerifier};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::warn_if_exposed;

/// Files in PEM, as certificate managers write them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of this process, and those between it and the authority.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// Authorities whose certificates are trusted; without, those of the system.
    pub ca: Option<PathBuf>,
    /// Whether clients without a certificate of `ca` may connect as well.
    pub admits_anybody: bool,
}

impl TlsFiles {
    fn warn_if_exposed(&self) {
        if let Some(key) = &self.key {
            warn_if_exposed("a private key", key);
        }
    }
}

/// What is spoken inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC.
    Http2,
    /// `/metrics` and the like.
    Http1,
}

impl Protocol {
    fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Self::Http2 => vec![b"h2".to_vec()],
            Self::Http1 => vec![b"http/1.1".to_vec()],
        }
    }
}

/// TLS 1.3 with the certificates in some files, as they were when these were read last.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    loaded: Mutex<Arc<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    contents: Contents,
    server: Option<Listening>,
    client: Arc<ClientConfig>,
}

/// What it listens with, by what is spoken.
#[derive(Debug, Clone)]
struct Listening {
    http2: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
}

/// Bytes of certificate, key and authorities.
#[derive(Clone, PartialEq, Eq)]
struct Contents([Option<Vec<u8>>; 3]);

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Contents(hidden)")
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// One sentence with the file and the fix.
    pub fn load(files: TlsFiles) -> Result<Self, String> {
        let contents = Contents::read(&files)?;
        let loaded = Mutex::new(Arc::new(Loaded::new(&files, contents)?));
        files.warn_if_exposed();
        Ok(Self { loaded, files })
    }

    /// Reads the files again, and uses for new connections what they say now; `true` where that is something else. With an
    /// error what was read before goes on.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn reload(&self) -> Result<bool, String> {
        let contents = Contents::read(&self.files)?;
        if self.loaded().contents == contents {
            return Ok(false);
        }
        let loaded = Arc::new(Loaded::new(&self.files, contents)?);
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
        self.files.warn_if_exposed();
        Ok(true)
    }

    /// Whether it has a certificate, without which nothing can listen.
    pub fn can_listen(&self) -> bool {
        self.loaded().server.is_some()
    }

    /// Whether clients must have a certificate.
    pub fn is_mutual(&self) -> bool {
        self.files.ca.is_some() && !self.files.admits_anybody
    }

    /// The listening end of a new connection.
    ///
    /// # Errors
    /// When the other end proves nothing, or this one has no certificate.
    pub async fn accept(
        &self,
        stream: TcpStream,
        protocol: Protocol,
    ) -> io::Result<server::TlsStream<TcpStream>> {
        let config = {
            let loaded = self.loaded();
            let configs = loaded.server.as_ref();
            let configs =
                configs.ok_or_else(|| io::Error::other("there is no certificate to listen with"))?;
            match protocol {
                Protocol::Http2 => Arc::clone(&configs.http2),
                Protocol::Http1 => Arc::clone(&configs.http1),
            }
        };
        TlsAcceptor::from(config).accept(stream).await
    }

    /// The connecting end of a new connection to `host`, a name or an address, to speak gRPC.
    ///
    /// # Errors
    /// When the other end does not prove that it is `host`.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<client::TlsStream<TcpStream>> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let config = Arc::clone(&self.loaded().client);
        TlsConnector::from(config).connect(name, stream).await
    }

    /// What was read last; shared, since each connection asks.
    fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, String> {
        let read = |path: &Option<PathBuf>| match path {
            Some(path) => {
                fs::read(path).map(Some).map_err(|error| format!("cannot read {}: {error}", path.display()))
            }
            None => Ok(None),
        };
        Ok(Self([read(&files.cert)?, read(&files.key)?, read(&files.ca)?]))
    }
}

impl Loaded {
    fn new(files: &TlsFiles, contents: Contents) -> Result<Self, String> {
        let Contents([cert, key, ca]) = &contents;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(match (ca, &files.ca) {
            (Some(pem), Some(path)) => authorities(pem, path)?,
            _ => system_authorities(),
        });
        let own = match (cert, key, &files.cert, &files.key) {
            (Some(cert), Some(key), Some(cert_path), Some(key_path)) => {
                Some((chain(cert, cert_path)?, private_key(key, key_path)?, cert_path))
            }
            (None, None, ..) => None,
            _ => {
                return Err(
                    "a certificate and its key belong together: give both, or none of them".to_owned()
                );
            }
        };
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?
            .with_root_certificates(Arc::clone(&roots));
        let (mut client, server) = match own {
            None => (client.with_no_client_auth(), None),
            Some((chain, key, path)) => {
                let unfit = |error: rustls::Error| {
                    format!("the certificate in {} cannot be used with its key: {error}", path.display())
                };
                let admitted = (ca.is_some() && !files.admits_anybody).then_some(&roots);
                let server = server_config(&provider, admitted)?
                    .with_single_cert(chain.clone(), key.clone_key())
                    .map_err(unfit)?;
                (client.with_client_auth_cert(chain, key).map_err(unfit)?, Some(Listening::of(server)))
            }
        };
        client.alpn_protocols = Protocol::Http2.alpn();
        Ok(Self { contents, server, client: Arc::new(client) })
    }
}

impl Listening {
    fn of(config: ServerConfig) -> Self {
        let speaks = |protocol: Protocol| {
            let mut config = config.clone();
            config.alpn_protocols = protocol.alpn();
            Arc::new(config)
        };
        Self { http2: speaks(Protocol::Http2), http1: speaks(Protocol::Http1) }
    }
}

/// A listener's settings; with authorities, for clients that have a certificate of one of them.
fn server_config(
    provider: &Arc<CryptoProvider>,
    admitted: Option<&Arc<RootCertStore>>,
) -> Result<ConfigBuilder<ServerConfig, WantsServerCert>, String> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?;
    let Some(roots) = admitted else { return Ok(builder.with_no_client_auth()) };
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider)).build();
    Ok(builder.with_client_cert_verifier(verifier.map_err(|error| error.to_string())?))
}

fn authorities(pem: &[u8], path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(pem, path)? {
        roots.add(certificate).map_err(|error| {
            format!("{} has a certificate that is no authority's: {error}", path.display())
        })?;
    }
    Ok(roots)
}

/// Those of the system that can be read; with none, no server is trusted, which the first connection says.
fn system_authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "some of the system's certificate authorities cannot be read");
    }
    roots.add_parsable_certificates(found.certs);
    roots
}

fn chain(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unreadable = |error| format!("{} is no certificate in PEM: {error}", path.display());
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(unreadable)?;
    if chain.is_empty() {
        return Err(format!(
            "{} has no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----",
            path.display()
        ));
    }
    Ok(chain)
}

fn private_key(pem: &[u8], path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        format!("{} has no private key in PEM, which begins with -----BEGIN PRIVATE KEY-----", path.display())
    })
}

#[cfg(test)]
mod tests;
