//! Decides when a certificate or a token is renewed: when less than a third of its validity remains.

use feedline_access::certificate_expiry_s;

/// Seconds of a day.
const DAY_S: u64 = 86_400;
/// The smallest validity of the certificate of an authority. Its key never changes, so that roles with an earlier
/// certificate of the authority trust new certificates.
const MIN_AUTHORITY_DAYS: u32 = 3_650;

/// Returns the validity of the authority's certificate for certificates that are valid for this number of days.
pub(crate) fn authority_days(days: u32) -> u32 {
    days.max(MIN_AUTHORITY_DAYS)
}

/// Returns whether less than a third of a validity remains.
pub(crate) fn is_renewal_due(expires_s: u64, lifetime_s: u64, now_s: u64) -> bool {
    expires_s.saturating_sub(now_s).saturating_mul(3) < lifetime_s
}

/// Returns whether a certificate in PEM is to be renewed. A text that is not a certificate is.
pub(crate) fn is_certificate_due(pem: &str, days: u32, now_s: u64) -> bool {
    certificate_expiry_s(pem)
        .is_none_or(|expires_s| is_renewal_due(expires_s, u64::from(days) * DAY_S, now_s))
}

/// Returns whether a token with this expiry is to be renewed. A token whose expiry does not match the setting `never` is.
pub(crate) fn is_token_due(expires_s: Option<u64>, lifetime_s: Option<u64>, now_s: u64) -> bool {
    match (expires_s, lifetime_s) {
        (Some(expires_s), Some(lifetime_s)) => is_renewal_due(expires_s, lifetime_s, now_s),
        (None, None) => false,
        (Some(_), None) | (None, Some(_)) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_renewed_after_two_thirds_of_their_validity() {
        for (passed_s, is_due) in
            [(0, false), (199, false), (200, false), (201, true), (300, true), (1_000, true)]
        {
            assert_eq!(is_renewal_due(1_300, 300, 1_000 + passed_s), is_due, "after {passed_s} of 300 s");
            assert_eq!(is_token_due(Some(1_300), Some(300), 1_000 + passed_s), is_due);
        }
        assert!(!is_token_due(None, None, u64::MAX));
        assert!(is_token_due(Some(1_300), None, 0) && is_token_due(None, Some(300), 0));
        assert!(is_certificate_due("nonsense", 365, 0));
    }
}
