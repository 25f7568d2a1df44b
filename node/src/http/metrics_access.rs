//! Checks the tokens of requests for metrics.

use std::sync::Arc;

use axum::http::HeaderMap;
use feedline_access::{ClusterSecret, Scope};
use feedline_proto::grpc::bearer_token;

/// Accepts tokens with the scope `observe` and without a tenant, because metrics describe all tenants.
pub(super) struct MetricsAccess(Arc<ClusterSecret>);

impl MetricsAccess {
    /// Creates a check that accepts tokens signed with this secret.
    pub(super) fn new(secret: Arc<ClusterSecret>) -> Self {
        Self(secret)
    }

    /// Checks the token in the headers of a request. `now_s` is a Unix timestamp in seconds. Returns a message on
    /// failure.
    pub(super) fn check(&self, headers: &HeaderMap, now_s: u64) -> Result<(), String> {
        let token = bearer_token(headers)
            .map_err(|error| error.message)?
            .ok_or("metrics require a token with the scope `observe`: send `authorization: Bearer TOKEN`")?;
        let claims = self.0.keys().tokens.check(token, now_s)?;
        let holder = &claims.holder;
        if !claims.has_any_scope(&[Scope::Observe]) {
            return Err(format!(
                "the token of `{holder}` does not have the scope `observe`, which metrics require: use another token"
            ));
        }
        match claims.tenant {
            None => Ok(()),
            Some(tenant) => Err(format!(
                "the token of `{holder}` is restricted to the tenant `{tenant}`, but metrics describe all tenants: use a token without a tenant"
            )),
        }
    }
}
