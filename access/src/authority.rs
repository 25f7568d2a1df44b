//! A cluster's own certificate authority, for those who have no other.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

/// Name of every such authority; its key tells it from others.
const NAME: &str = "Feedline cluster authority";
/// Certificates are good from this long before they are made, since clocks differ.
const BEFORE: Duration = Duration::hours(1);

/// A certificate and its private key, in PEM.
#[derive(Clone)]
pub struct Certified {
    /// The certificate.
    pub cert: String,
    /// The key.
    pub key: String,
}

impl std::fmt::Debug for Certified {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certified").field("cert", &self.cert).field("key", &"hidden").finish()
    }
}

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    own: Certified,
}

impl Authority {
    /// A new one, good for so many days.
    ///
    /// # Errors
    /// One clause, when the system gives no random numbers.
    pub fn new(days: u32) -> Result<Self, String> {
        Self::of(KeyPair::generate().map_err(|error| error.to_string())?, days)
    }

    /// The one with this private key in PEM: certificates that it issues are trusted wherever its own is, however old that is.
    ///
    /// # Errors
    /// One clause, when this is no key.
    pub fn of_key(pem: &str) -> Result<Self, String> {
        Self::of(KeyPair::from_pem(pem).map_err(|_| "it has no private key in PEM".to_owned())?, 1)
    }

    fn of(key: KeyPair, days: u32) -> Result<Self, String> {
        let mut params = params(Vec::new(), NAME, days)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key).map_err(|error| error.to_string())?.pem();
        let own = Certified { cert, key: key.serialize_pem() };
        Ok(Self { issuer: Issuer::new(params, key), own })
    }

    /// Its own certificate, by which others know it, and its key.
    pub fn certified(&self) -> &Certified {
        &self.own
    }

    /// A certificate with which a process can listen at these names and addresses, and connect to others.
    ///
    /// # Errors
    /// One clause, when one of them is neither.
    pub fn issue(&self, name: &str, hosts: &[String], days: u32) -> Result<Certified, String> {
        for host in hosts {
            let is_name = host.chars().all(|c| c.is_ascii_alphanumeric() || "-.*".contains(c));
            if host.is_empty() || !(is_name || host.parse::<IpAddr>().is_ok()) {
                return Err(format!("`{host}` is no name or address of a host"));
            }
        }
        let mut params = params(hosts.to_vec(), name, days)?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().map_err(|error| error.to_string())?;
        let cert = params.signed_by(&key, &self.issuer).map_err(|error| error.to_string())?;
        Ok(Certified { cert: cert.pem(), key: key.serialize_pem() })
    }
}

fn params(hosts: Vec<String>, name: &str, days: u32) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::new(hosts).map_err(|error| error.to_string())?;
    params.distinguished_name.push(DnType::CommonName, name);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - BEFORE;
    let end = now.checked_add(Duration::days(i64::from(days)));
    params.not_after = end.ok_or("that is too many days")?;
    Ok(params)
}
