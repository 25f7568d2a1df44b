//! Reads the expiry and the names of a certificate in PEM.

use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};

use crate::expiry::expiry_s;

/// Returns the expiry of the first certificate in a PEM text as a Unix timestamp in seconds; `None` for another text.
pub fn certificate_expiry_s(pem: &str) -> Option<u64> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    u64::try_from(expiry_s(&certificate)?).ok()
}

/// Returns whether the first certificate in a PEM text is valid for a host: a name, an address, or a wildcard such as
/// `*.feedline`.
pub fn certificate_contains_host(pem: &str, host: &str) -> bool {
    let Ok(certificate) = CertificateDer::from_pem_slice(pem.as_bytes()) else { return false };
    // A certificate with a wildcard is valid for each name in its place.
    let host = host.strip_prefix("*.").map_or_else(|| host.to_owned(), |domain| format!("any.{domain}"));
    let Ok(name) = ServerName::try_from(host) else { return false };
    ParsedCertificate::try_from(&certificate).is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CertificateAuthority, now_s};

    #[test]
    fn the_expiry_and_the_hosts_of_a_certificate_are_read() {
        let authority = CertificateAuthority::new(30).unwrap();
        let hosts = ["a.feedline", "*.b.feedline", "10.0.0.7", "::1"].map(str::to_owned);
        let pem = authority.issue("feedline role", &hosts, 30).unwrap().cert;
        let expected = now_s() + 30 * 86_400;
        let expiry = certificate_expiry_s(&pem).unwrap();
        assert!((expected - 60..=expected + 60).contains(&expiry), "{expiry}, not {expected}");
        for host in &hosts {
            assert!(certificate_contains_host(&pem, host), "{host}");
        }
        for other in ["feedline", "c.feedline", "*.feedline", "10.0.0.8", "::2", "a b", ""] {
            assert!(!certificate_contains_host(&pem, other), "{other}");
        }
        assert_eq!(certificate_expiry_s("nonsense"), None);
        assert!(!certificate_contains_host("nonsense", "a.feedline"));
    }
}
