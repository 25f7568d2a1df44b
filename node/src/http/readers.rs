//! Who may read metrics where a cluster asks for tokens, and nobody has to show a certificate.

use axum::http::HeaderMap;
use feedline_access::Secret;
use feedline_access::token::{Scope, Tokens};
use feedline_proto::grpc::shown_token;

/// Those with a token that observes, of no tenant: metrics are of all.
pub(super) struct Readers(Tokens);

impl Readers {
    /// Those of the cluster with this secret.
    pub(super) fn of(secret: &Secret) -> Self {
        Self(Tokens::new(secret))
    }

    /// Refuses a request with these headers, at `now_s`, seconds since 1970, whose sender may not read metrics: one sentence.
    pub(super) fn check(&self, headers: &HeaderMap, now_s: u64) -> Result<(), String> {
        let token = shown_token(headers).map_err(|refusal| refusal.message)?.ok_or(
            "metrics are shown to whoever has a token with the scope observe; send `authorization: Bearer TOKEN`",
        )?;
        let claims = self.0.check(token, now_s)?;
        let holder = &claims.holder;
        if !claims.allows(&[Scope::Observe]) {
            return Err(format!(
                "the token of `{holder}` does not allow to read metrics, which takes the scope observe"
            ));
        }
        match claims.tenant {
            None => Ok(()),
            Some(tenant) => Err(format!(
                "the token of `{holder}` is of the tenant `{tenant}`, and metrics are of all tenants; use one of none"
            )),
        }
    }
}
