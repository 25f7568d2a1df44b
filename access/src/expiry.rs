//! Reads the expiry of a certificate. rustls checks the expiry of other processes' certificates, but returns none.

use time::{Date, Month};

/// DER tags of the elements before the expiry (RFC 5280).
const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
/// DER tags of times: with two and with four digits of the year.
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Years of a [`UTC_TIME`] below this number belong to the 21st century.
const FIRST_YEAR_OF_20TH_CENTURY: i32 = 50;

/// Returns the expiry of a certificate in DER as a Unix timestamp in seconds; `None` for other bytes.
pub(crate) fn expiry_s(certificate: &[u8]) -> Option<i64> {
    let mut certificate = Elements(Elements(certificate).content(SEQUENCE)?);
    let mut signed = Elements(certificate.content(SEQUENCE)?);
    if signed.0.first() == Some(&VERSION) {
        signed.element()?;
    }
    // The serial number, the signature algorithm and the issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        signed.content(tag)?;
    }
    let mut validity = Elements(signed.content(SEQUENCE)?);
    validity.element()?;
    let (tag, text) = validity.element()?;
    unix_time_s(tag, std::str::from_utf8(text).ok()?)
}

/// The remaining elements of a sequence in DER.
struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    /// Returns the tag and the content of the next element.
    fn element(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, rest) = self.0.split_first()?;
        let (length, rest) = rest.split_first()?;
        let (length, rest) = match length {
            0x00..=0x7f => (usize::from(*length), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(*length & 0x7f))?;
                (bytes.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((*tag, content))
    }

    /// Returns the content of the next element, which must have this tag.
    fn content(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, content) = self.element()?;
        (found == tag).then_some(content)
    }
}

/// Parses a time such as `YYMMDDHHMMSSZ`.
fn unix_time_s(tag: u8, text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z')?;
    let (year, rest) = text.split_at_checked(if tag == GENERALIZED_TIME { 4 } else { 2 })?;
    let year: i32 = year.parse().ok()?;
    let year = match tag {
        GENERALIZED_TIME => year,
        UTC_TIME if year < FIRST_YEAR_OF_20TH_CENTURY => 2_000 + year,
        UTC_TIME => 1_900 + year,
        _ => return None,
    };
    let part = |index: usize| rest.get(2 * index..2 * index + 2)?.parse::<u8>().ok();
    let date = Date::from_calendar_date(year, Month::try_from(part(0)?).ok()?, part(1)?).ok()?;
    Some(date.with_hms(part(2)?, part(3)?, part(4)?).ok()?.assume_utc().unix_timestamp())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    use super::*;
    use crate::{CertificateAuthority, now_s};

    fn certificate(days: u32) -> CertificateDer<'static> {
        let authority = CertificateAuthority::new(days).unwrap();
        let issued = authority.issue("own", &["localhost".to_owned()], days).unwrap();
        CertificateDer::from_pem_slice(issued.cert.as_bytes()).unwrap()
    }

    #[test]
    fn the_expiry_of_a_certificate_is_read() {
        // A certificate that expires after 2049 contains a time with four digits of the year.
        for days in [1, 365, 40 * 365] {
            let expected = now_s() as i64 + i64::from(days) * 86_400;
            let found = expiry_s(&certificate(days)).unwrap();
            assert!((expected - 60..=expected + 60).contains(&found), "{days} days: {found}, not {expected}");
        }
        assert_eq!(unix_time_s(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(unix_time_s(UTC_TIME, "010909014640Z"), Some(1_000_000_000));
        assert_eq!(unix_time_s(GENERALIZED_TIME, "20010909014640Z"), Some(1_000_000_000));
        for wrong in ["", "Z", "01090901464Z", "011309014640Z", "010909014640", "é10909014640Z"] {
            assert_eq!(unix_time_s(UTC_TIME, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_truncated_certificate_has_no_expiry() {
        let certificate = certificate(1);
        for length in 0..certificate.len() {
            assert_eq!(expiry_s(&certificate[..length]), None);
        }
    }

    proptest! {
        #[test]
        fn other_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = expiry_s(&bytes);
        }
    }
}
