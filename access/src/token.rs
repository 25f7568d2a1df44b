//! Tokens: signed claims about the scopes, the tenant and the expiry of their owner.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use ring::signature::Ed25519KeyPair;
use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::sealed::{seal, unseal};

/// Prefix of tokens.
const TOKEN_PREFIX: &str = "feedline-token-1";
/// Usage label for the derivation of the token keys.
const TOKEN_KEY_USAGE: &str = "tokens";

/// A right that a token can grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Open and cancel jobs.
    Submit,
    /// Receive the rows of open jobs.
    Consume,
    /// Act as a worker.
    Work,
    /// Read jobs, the cluster and metrics.
    Observe,
    /// Add and remove coordinators, and transfer leadership.
    Admin,
    /// Act as a coordinator. Coordinators issue such tokens to each other.
    Coordinate,
}

impl Scope {
    /// Scopes for users and roles.
    pub const GRANTABLE: [Self; 5] = [Self::Submit, Self::Consume, Self::Work, Self::Observe, Self::Admin];

    /// Scopes that concern the whole cluster. A token of a tenant cannot have them.
    pub const CLUSTER_WIDE: [Self; 3] = [Self::Work, Self::Admin, Self::Coordinate];

    /// Name of the scope on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Consume => "consume",
            Self::Work => "work",
            Self::Observe => "observe",
            Self::Admin => "admin",
            Self::Coordinate => "coordinate",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::GRANTABLE.into_iter().find(|scope| scope.name() == text.trim());
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::GRANTABLE.into_iter().map(Self::name).collect();
            format!("invalid scope `{text}`: expected one of {}", names.join(", "))
        })
    }
}

/// The claims of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Owner of the token, for logs.
    #[serde(rename = "sub")]
    pub holder: String,
    /// Scopes of the token.
    pub scopes: BTreeSet<Scope>,
    /// Tenant of the token. `None` covers the jobs of all tenants, and new jobs belong to the default tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Expiry time as a Unix timestamp in seconds; `None` means that the token does not expire.
    #[serde(rename = "exp", default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

impl Claims {
    /// Returns whether the claims contain any of these scopes.
    pub fn has_any_scope(&self, scopes: &[Scope]) -> bool {
        scopes.iter().any(|scope| self.scopes.contains(scope))
    }

    /// Rejects invalid combinations of claims, even with a valid signature.
    ///
    /// # Errors
    /// Returns a message with the fix.
    pub fn check(&self) -> Result<(), String> {
        let of_cluster = Scope::CLUSTER_WIDE.into_iter().find(|scope| self.scopes.contains(scope));
        if let (Some(tenant), Some(scope)) = (&self.tenant, of_cluster) {
            return Err(format!(
                "a token for tenant `{tenant}` cannot have the scope `{scope}`, which applies to the whole cluster; create two tokens: one for the tenant and one with that scope"
            ));
        }
        if self.scopes.contains(&Scope::Coordinate) && self.expires_s.is_none() {
            return Err(format!(
                "the token of `{}` has the scope `coordinate` and never expires, which is not allowed; use the same release on all coordinators",
                self.holder
            ));
        }
        Ok(())
    }
}

/// Issues and verifies the tokens of a cluster.
pub struct Tokens {
    keys: Ed25519KeyPair,
    public: Vec<Vec<u8>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

impl Tokens {
    /// Creates the issuer of a cluster with this secret.
    pub fn new(secret: &Secret) -> Self {
        Self { keys: secret.signing_keys(TOKEN_KEY_USAGE), public: secret.public_keys(TOKEN_KEY_USAGE) }
    }

    /// Issues a token with the given claims.
    pub fn issue(&self, claims: &Claims) -> String {
        seal(TOKEN_PREFIX, claims, &self.keys)
    }

    /// Verifies a token and returns its claims.
    ///
    /// # Errors
    /// Returns a message if the token belongs to another cluster, has invalid claims, or has expired at `now_s`, a Unix
    /// timestamp in seconds.
    pub fn check(&self, token: &str, now_s: u64) -> Result<Claims, String> {
        let signed: Option<Claims> = self.public.iter().find_map(|key| unseal(TOKEN_PREFIX, token, key));
        let claims = signed.ok_or(
            "the token is not valid for this cluster; create a token from the cluster secret with `feedline keys token`",
        )?;
        claims.check()?;
        match claims.expires_s {
            Some(end) if end <= now_s => Err(format!(
                "the token of `{}` expired {} s ago; create a new token with `feedline keys token`",
                claims.holder,
                now_s - end
            )),
            _ => Ok(claims),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claims() -> Claims {
        Claims {
            holder: "ci".to_owned(),
            scopes: [Scope::Submit, Scope::Consume].into(),
            tenant: Some("vision".to_owned()),
            expires_s: Some(1_000),
        }
    }

    #[test]
    fn a_token_returns_its_claims_until_it_expires() {
        let tokens = Tokens::new(&Secret::new().unwrap());
        let token = tokens.issue(&claims());
        assert_eq!(tokens.check(&format!("{token}\n"), 999), Ok(claims()));
        let error = tokens.check(&token, 1_003).unwrap_err();
        assert_eq!(error, "the token of `ci` expired 3 s ago; create a new token with `feedline keys token`");
        let endless = Claims { expires_s: None, ..claims() };
        assert_eq!(tokens.check(&tokens.issue(&endless), u64::MAX), Ok(endless));
    }

    #[test]
    fn a_token_of_another_cluster_is_rejected() {
        let [mine, other] = [0, 1].map(|_| Tokens::new(&Secret::new().unwrap()));
        assert!(mine.check(&other.issue(&claims()), 0).unwrap_err().contains("not valid for this cluster"));
    }

    #[test]
    fn during_a_rotation_tokens_of_both_secrets_are_valid() {
        let [old, new] = [0, 1].map(|_| Secret::new().unwrap());
        let both = Tokens::new(&Secret::parse(&format!("{}\n{}", old.text(), new.text())).unwrap());
        for secret in [&old, &new] {
            assert_eq!(both.check(&Tokens::new(secret).issue(&claims()), 0), Ok(claims()));
        }
        assert!(Tokens::new(&old).check(&both.issue(&claims()), 0).is_ok(), "the first secret signs");
        assert!(Tokens::new(&new).check(&both.issue(&claims()), 0).is_err());
    }

    #[test]
    fn a_signed_token_of_a_tenant_with_a_cluster_wide_scope_is_rejected() {
        let tokens = Tokens::new(&Secret::new().unwrap());
        for scope in Scope::CLUSTER_WIDE {
            let of_all = Claims { scopes: [Scope::Observe, scope].into(), tenant: None, ..claims() };
            assert!(tokens.check(&tokens.issue(&of_all), 0).is_ok(), "{scope}");
            let of_one = Claims { tenant: Some("vision".to_owned()), ..of_all };
            let error = tokens.check(&tokens.issue(&of_one), 0).unwrap_err();
            assert!(
                error.starts_with(&format!("a token for tenant `vision` cannot have the scope `{scope}`")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_coordinator_token_without_expiry_is_rejected() {
        let tokens = Tokens::new(&Secret::new().unwrap());
        let endless =
            Claims { scopes: [Scope::Coordinate].into(), tenant: None, expires_s: None, ..claims() };
        let error = tokens.check(&tokens.issue(&endless), 0).unwrap_err();
        assert!(error.contains("never expires"), "{error}");
        let short = Claims { expires_s: Some(60), ..endless };
        assert_eq!(tokens.check(&tokens.issue(&short), 0), Ok(short));
    }

    #[test]
    fn scopes_are_parsed_by_name_and_coordinate_cannot_be_granted() {
        for scope in Scope::GRANTABLE {
            assert_eq!(scope.name().parse(), Ok(scope));
        }
        assert_eq!(
            "coordinate".parse::<Scope>(),
            Err("invalid scope `coordinate`: expected one of submit, consume, work, observe, admin"
                .to_owned())
        );
        assert!(
            claims().has_any_scope(&[Scope::Observe, Scope::Consume])
                && !claims().has_any_scope(&[Scope::Work])
        );
    }

    proptest! {
        #[test]
        fn a_token_with_a_changed_byte_is_rejected(index in 0_usize..200, byte in 33_u8..127) {
            let tokens = Tokens::new(&Secret::parse(&format!("feedline-secret-1:{}", "A".repeat(43))).unwrap());
            let token = tokens.issue(&claims());
            let mut changed = token.clone().into_bytes();
            let index = index % changed.len();
            prop_assume!(changed[index] != byte);
            changed[index] = byte;
            prop_assert!(tokens.check(&String::from_utf8(changed).unwrap(), 0).is_err());
        }

        #[test]
        fn arbitrary_text_is_rejected(text in ".{0,200}") {
            prop_assert!(Tokens::new(&Secret::new().unwrap()).check(&text, 0).is_err());
        }
    }
}
