//! A built-in certificate authority for clusters that do not have their own.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use time::{Duration, OffsetDateTime};

/// Common name of all authorities. Each authority has its own key.
const AUTHORITY_NAME: &str = "Feedline cluster authority";
/// Certificates become valid this long before their creation, because the clocks of hosts differ.
const CLOCK_TOLERANCE: Duration = Duration::hours(1);

/// A certificate and its private key, in PEM.
#[derive(Clone)]
pub struct CertifiedKey {
    /// The certificate.
    pub cert: String,
    /// The private key.
    pub key: String,
}

impl std::fmt::Debug for CertifiedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertifiedKey").field("cert", &self.cert).field("key", &"hidden").finish()
    }
}

/// A certificate authority.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    certified_key: CertifiedKey,
    /// The public key in DER, as certificates contain it.
    public_key: Vec<u8>,
}

impl CertificateAuthority {
    /// Creates an authority that is valid for this number of days.
    ///
    /// # Errors
    /// Returns a message if the system cannot generate random numbers.
    pub fn new(days: u32) -> Result<Self, String> {
        Self::with_key(KeyPair::generate().map_err(|error| error.to_string())?, days)
    }

    /// Loads an authority from its private key in PEM, with a new certificate that is valid for this number of days.
    /// Processes that trust an earlier certificate of the authority also trust newly issued certificates.
    ///
    /// # Errors
    /// Returns a message if the text is not a private key.
    pub fn from_key(pem: &str, days: u32) -> Result<Self, String> {
        let key = KeyPair::from_pem(pem).map_err(|_| "the file contains no private key in PEM".to_owned())?;
        Self::with_key(key, days)
    }

    fn with_key(key: KeyPair, days: u32) -> Result<Self, String> {
        let mut params = params(Vec::new(), AUTHORITY_NAME, days)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key).map_err(|error| error.to_string())?.pem();
        let certified_key = CertifiedKey { cert, key: key.serialize_pem() };
        let public_key = key.subject_public_key_info();
        Ok(Self { issuer: Issuer::new(params, key), certified_key, public_key })
    }

    /// Returns whether a certificate in PEM contains the key of this authority, so that processes which trust the
    /// certificate also trust certificates that the authority issues.
    pub fn has_key_of(&self, certificate: &str) -> bool {
        let Ok(certificate) = CertificateDer::from_pem_slice(certificate.as_bytes()) else { return false };
        certificate.windows(self.public_key.len()).any(|part| part == self.public_key)
    }

    /// Returns the certificate of the authority, which other processes trust, and its key.
    pub fn certified_key(&self) -> &CertifiedKey {
        &self.certified_key
    }

    /// Issues a certificate for a server at these host names and addresses, which is also a client certificate.
    ///
    /// # Errors
    /// Returns a message for a host that is neither a name nor an address.
    pub fn issue(&self, name: &str, hosts: &[String], days: u32) -> Result<CertifiedKey, String> {
        for host in hosts {
            let is_name = host.chars().all(|c| c.is_ascii_alphanumeric() || "-.*".contains(c));
            if host.is_empty() || !(is_name || host.parse::<IpAddr>().is_ok()) {
                return Err(format!("invalid host `{host}`: expected a name or an address"));
            }
        }
        let mut params = params(hosts.to_vec(), name, days)?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().map_err(|error| error.to_string())?;
        let cert = params.signed_by(&key, &self.issuer).map_err(|error| error.to_string())?;
        Ok(CertifiedKey { cert: cert.pem(), key: key.serialize_pem() })
    }
}

fn params(hosts: Vec<String>, name: &str, days: u32) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::new(hosts).map_err(|error| error.to_string())?;
    params.distinguished_name.push(DnType::CommonName, name);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCK_TOLERANCE;
    let end = now.checked_add(Duration::days(i64::from(days)));
    params.not_after = end.ok_or("the number of days is too large")?;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_recognises_earlier_certificates_of_its_key() {
        let [own, other] = [0, 1].map(|_| CertificateAuthority::new(1).unwrap());
        let again = CertificateAuthority::from_key(&own.certified_key().key, 365).unwrap();
        assert!(again.has_key_of(&own.certified_key().cert));
        assert!(!again.has_key_of(&other.certified_key().cert) && !again.has_key_of("nonsense"));
        // A certificate that the authority issued contains another key.
        assert!(!own.has_key_of(&own.issue("feedline role", &[], 1).unwrap().cert));
    }
}
