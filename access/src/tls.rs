//! TLS connections with mutual authentication, and certificates that are reloaded while the process runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::server::{ParsedCertificate, WantsServerCert, WebPkiClientVerifier};
use rustls::{CertificateError, ClientConfig, ConfigBuilder, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::expiry::expiry_s;
use crate::warn_if_exposed;

/// Maximum number of reads of files that change between two reads.
const MAX_READS: usize = 4;

/// Certificate files in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of this process and the intermediate certificates.
    pub cert: Option<PathBuf>,
    /// The private key of the certificate.
    pub key: Option<PathBuf>,
    /// Trusted certificate authorities; `None` trusts the system CA certificates.
    pub ca: Option<PathBuf>,
    /// Whether clients without a certificate from `ca` may connect.
    pub allows_unverified_clients: bool,
}

impl TlsFiles {
    fn warn_if_exposed(&self) {
        if let Some(key) = &self.key {
            warn_if_exposed("a private key", key);
        }
    }
}

/// The protocol inside a TLS connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC.
    Http2,
    /// HTTP endpoints such as `/metrics`.
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

/// TLS 1.3 with certificates from files.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    loaded: Mutex<Arc<LoadedTls>>,
}

#[derive(Debug)]
struct LoadedTls {
    contents: FileContents,
    /// The certificate of this process.
    own: Option<CertificateDer<'static>>,
    server: Option<ServerConfigs>,
    client: Arc<ClientConfig>,
    /// Expiry of the certificate as a Unix timestamp in seconds.
    expiry_s: Option<i64>,
}

/// The server configurations for both protocols.
#[derive(Debug, Clone)]
struct ServerConfigs {
    http2: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
}

/// Contents of the certificate file, the key file and the CA file.
#[derive(Clone, PartialEq, Eq)]
struct FileContents([Option<Vec<u8>>; 3]);

impl std::fmt::Debug for FileContents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FileContents(hidden)")
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Returns a message with the file and the fix.
    pub fn load(files: TlsFiles) -> Result<Self, String> {
        let contents = FileContents::read(&files)?;
        let loaded = Mutex::new(Arc::new(LoadedTls::new(&files, contents)?));
        files.warn_if_exposed();
        Ok(Self { loaded, files })
    }

    /// Reads the files again, for new connections. Returns whether they have changed. After an error, the previous
    /// certificates stay in use.
    ///
    /// # Errors
    /// Returns the errors of [`Self::load`].
    pub fn reload(&self) -> Result<bool, String> {
        let contents = FileContents::read(&self.files)?;
        if self.loaded().contents == contents {
            return Ok(false);
        }
        let loaded = Arc::new(LoadedTls::new(&self.files, contents)?);
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
        self.files.warn_if_exposed();
        Ok(true)
    }

    /// Returns whether this process has a certificate, which a server needs.
    pub fn can_listen(&self) -> bool {
        self.loaded().server.is_some()
    }

    /// Returns whether clients must have a certificate.
    pub fn is_mutual(&self) -> bool {
        self.files.ca.is_some() && !self.files.allows_unverified_clients
    }

    /// Checks that the certificate of this process contains `name`, a name or an address.
    ///
    /// # Errors
    /// Returns a message if `name` is malformed, or if the process has no certificate with this name.
    pub fn check_own_name(&self, name: &str) -> Result<(), String> {
        let server_name = parse_server_name(name)?;
        let loaded = self.loaded();
        let (Some(own), Some(path)) = (&loaded.own, &self.files.cert) else {
            return Err("this process has no certificate; set --tls-cert and --tls-key".to_owned());
        };
        let checked =
            ParsedCertificate::try_from(own).and_then(|parsed| verify_server_name(&parsed, &server_name));
        checked.map_err(|error| {
            let problem = match &error {
                rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
                    presented,
                    ..
                }) => {
                    format!(" does not contain the name `{name}`, {}", describe_names(presented))
                }
                rustls::Error::InvalidCertificate(reason) => format!(": {reason}"),
                other => format!(": {other}"),
            };
            format!("{}{problem}; issue a certificate that contains `{name}`", path.display())
        })
    }

    /// Returns the time at which the first certificate in the chain of this process expires, as a Unix timestamp in seconds.
    /// Returns `None` without a certificate.
    pub fn certificate_expiry_s(&self) -> Option<i64> {
        self.loaded().expiry_s
    }

    /// Performs the server side of a handshake.
    ///
    /// # Errors
    /// Returns an error if the client cannot be authenticated, or this process has no certificate.
    pub async fn accept(
        &self,
        stream: TcpStream,
        protocol: Protocol,
    ) -> io::Result<server::TlsStream<TcpStream>> {
        let config = {
            let loaded = self.loaded();
            let configs = loaded.server.as_ref();
            let configs = configs.ok_or_else(|| {
                io::Error::other("a server needs a certificate; set --tls-cert and --tls-key")
            })?;
            match protocol {
                Protocol::Http2 => Arc::clone(&configs.http2),
                Protocol::Http1 => Arc::clone(&configs.http1),
            }
        };
        TlsAcceptor::from(config).accept(stream).await
    }

    /// Performs the client side of a handshake with `host`, a name or an address, for gRPC.
    ///
    /// # Errors
    /// Returns an error if the server has no trusted certificate for `host`.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<client::TlsStream<TcpStream>> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let config = Arc::clone(&self.loaded().client);
        TlsConnector::from(config).connect(name, stream).await
    }

    /// Returns the current configuration.
    fn loaded(&self) -> Arc<LoadedTls> {
        Arc::clone(&self.loaded.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl FileContents {
    /// Reads the files until two reads return the same contents, because the files may be replaced one after another. A
    /// certificate and the key of another certificate would not be usable.
    fn read(files: &TlsFiles) -> Result<Self, String> {
        let mut contents = Self::read_once(files)?;
        for _ in 1..MAX_READS {
            let again = Self::read_once(files)?;
            if again == contents {
                break;
            }
            contents = again;
        }
        Ok(contents)
    }

    fn read_once(files: &TlsFiles) -> Result<Self, String> {
        let read = |path: &Option<PathBuf>| match path {
            Some(path) => {
                fs::read(path).map(Some).map_err(|error| format!("cannot read {}: {error}", path.display()))
            }
            None => Ok(None),
        };
        Ok(Self([read(&files.cert)?, read(&files.key)?, read(&files.ca)?]))
    }
}

impl LoadedTls {
    fn new(files: &TlsFiles, contents: FileContents) -> Result<Self, String> {
        let FileContents([cert, key, ca]) = &contents;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(match (ca, &files.ca) {
            (Some(pem), Some(path)) => parse_authorities(pem, path)?,
            _ => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(system_authorities());
                roots
            }
        });
        let certified_key = match (cert, key, &files.cert, &files.key) {
            (Some(cert), Some(key), Some(cert_path), Some(key_path)) => {
                Some((parse_chain(cert, cert_path)?, parse_key(key, key_path)?, cert_path))
            }
            (None, None, ..) => None,
            _ => {
                return Err(
                    "a certificate needs its key, and a key needs its certificate: set both, or neither"
                        .to_owned(),
                );
            }
        };
        let expiry_s = certified_key.as_ref().and_then(|(chain, ..)| {
            let expiries = chain.iter().filter_map(|certificate| expiry_s(certificate));
            expiries.min()
        });
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?
            .with_root_certificates(Arc::clone(&roots));
        let own = certified_key.as_ref().and_then(|(chain, ..)| chain.first().cloned());
        let (mut client, server) = match certified_key {
            None => (client.with_no_client_auth(), None),
            Some((chain, key, path)) => {
                let mismatch = |error: rustls::Error| {
                    format!("cannot use the certificate in {} with its key: {error}", path.display())
                };
                let client_roots = (ca.is_some() && !files.allows_unverified_clients).then_some(&roots);
                let server = server_config(&provider, client_roots)?
                    .with_single_cert(chain.clone(), key.clone_key())
                    .map_err(mismatch)?;
                (
                    client.with_client_auth_cert(chain, key).map_err(mismatch)?,
                    Some(ServerConfigs::new(server)),
                )
            }
        };
        client.alpn_protocols = Protocol::Http2.alpn();
        Ok(Self { contents, own, server, client: Arc::new(client), expiry_s })
    }
}

impl ServerConfigs {
    fn new(config: ServerConfig) -> Self {
        let with_protocol = |protocol: Protocol| {
            let mut config = config.clone();
            config.alpn_protocols = protocol.alpn();
            Arc::new(config)
        };
        Self { http2: with_protocol(Protocol::Http2), http1: with_protocol(Protocol::Http1) }
    }
}

/// Checks that `name` is a name or an address that a certificate can contain. A wildcard is not a name of a server.
///
/// # Errors
/// Returns a message with the expected form.
pub fn check_server_name(name: &str) -> Result<(), String> {
    parse_server_name(name).map(|_| ())
}

/// Describes the names of a certificate, which rustls returns as texts such as `DnsName("localhost")`.
fn describe_names(presented: &[String]) -> String {
    let plain = |name: &String| -> String {
        let inner = name.split_once('(').map_or(name.as_str(), |(_, inner)| inner.trim_end_matches(')'));
        inner.trim_matches('"').to_owned()
    };
    match presented {
        [] => "and it contains none".to_owned(),
        names => format!("only {}", names.iter().map(plain).collect::<Vec<_>>().join(", ")),
    }
}

fn parse_server_name(name: &str) -> Result<ServerName<'_>, String> {
    ServerName::try_from(name).map_err(|_| {
        format!(
            "invalid certificate name `{name}`: expected a DNS name or an address, such as workers.feedline"
        )
    })
}

/// Returns the configuration of a server. If `client_roots` is set, clients need a certificate from one of these
/// authorities.
fn server_config(
    provider: &Arc<CryptoProvider>,
    client_roots: Option<&Arc<RootCertStore>>,
) -> Result<ConfigBuilder<ServerConfig, WantsServerCert>, String> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?;
    let Some(roots) = client_roots else { return Ok(builder.with_no_client_auth()) };
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider)).build();
    Ok(builder.with_client_cert_verifier(verifier.map_err(|error| error.to_string())?))
}

fn parse_authorities(pem: &[u8], path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in parse_chain(pem, path)? {
        roots.add(certificate).map_err(|error| {
            format!("{} contains a certificate that is not a CA certificate: {error}", path.display())
        })?;
    }
    Ok(roots)
}

/// Returns the CA certificates of the system. If there are none, the first connection fails, because no server is trusted.
pub fn system_authorities() -> Vec<CertificateDer<'static>> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "cannot load a system CA certificate");
    }
    usable_authorities(found.certs)
}

/// Returns the certificates that rustls accepts. Systems have very old ones too, with which no connection could be made.
fn usable_authorities(mut certificates: Vec<CertificateDer<'static>>) -> Vec<CertificateDer<'static>> {
    certificates.retain(|certificate| RootCertStore::empty().add(certificate.clone()).is_ok());
    certificates
}

fn parse_chain(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let invalid = |error| format!("cannot parse the certificate in {}: {error}", path.display());
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(invalid)?;
    if chain.is_empty() {
        return Err(format!(
            "{} contains no certificate: expected PEM that starts with -----BEGIN CERTIFICATE-----",
            path.display()
        ));
    }
    Ok(chain)
}

fn parse_key(pem: &[u8], path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        format!(
            "{} contains no private key: expected PEM that starts with -----BEGIN PRIVATE KEY-----",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests;
