//! Tokens: what whoever holds one may do, on whose behalf, and until when.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use ring::signature::Ed25519KeyPair;
use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::sealed::{seal, unseal};

/// How tokens begin.
const PREFIX: &str = "feedline-token-1";
/// What their keys are derived with.
const USAGE: &str = "tokens";

/// Something that a token may allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// To open and cancel jobs.
    Submit,
    /// To take the rows of jobs that are open.
    Consume,
    /// To be a worker.
    Work,
    /// To see jobs, the cluster and what it measures.
    Observe,
    /// To add and remove coordinators.
    Admin,
    /// To be a coordinator: coordinators make tokens of it for each other.
    Coordinate,
}

impl Scope {
    /// Those that people and roles are given.
    pub const GIVEN: [Self; 5] = [Self::Submit, Self::Consume, Self::Work, Self::Observe, Self::Admin];

    /// Those that are of the whole cluster, so that no tenant can have them.
    pub const OF_CLUSTER: [Self; 3] = [Self::Work, Self::Admin, Self::Coordinate];

    /// Its name on the command line.
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
        let found = Self::GIVEN.into_iter().find(|scope| scope.name() == text.trim());
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::GIVEN.into_iter().map(Self::name).collect();
            format!("`{text}` is no scope; there are {}", names.join(", "))
        })
    }
}

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Who holds it, for logs.
    #[serde(rename = "sub")]
    pub holder: String,
    /// What it allows.
    pub scopes: BTreeSet<Scope>,
    /// Whose jobs it allows it with; without, those of all tenants, and new jobs are the default tenant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Seconds since 1970, UTC, from which on it is no longer good; without, it always is.
    #[serde(rename = "exp", default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

impl Claims {
    /// Whether it allows one of these.
    pub fn allows(&self, scopes: &[Scope]) -> bool {
        scopes.iter().any(|scope| self.scopes.contains(scope))
    }

    /// Refuses what no token may say, however well it is signed.
    ///
    /// # Errors
    /// One sentence with the fix.
    pub fn check(&self) -> Result<(), String> {
        let of_cluster = Scope::OF_CLUSTER.into_iter().find(|scope| self.scopes.contains(scope));
        if let (Some(tenant), Some(scope)) = (&self.tenant, of_cluster) {
            return Err(format!(
                "a token of the tenant `{tenant}` cannot allow `{scope}`, which is of the whole cluster; make one for each, with the tenant or with that scope"
            ));
        }
        if self.scopes.contains(&Scope::Coordinate) && self.expires_s.is_none() {
            return Err(format!(
                "the token of `{}` is a coordinator's and never expires, and coordinators make theirs for minutes; use the same release on all coordinators",
                self.holder
            ));
        }
        Ok(())
    }
}

/// Makes and checks the tokens of a cluster.
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
    /// The tokens of the cluster with this secret.
    pub fn new(secret: &Secret) -> Self {
        Self { keys: secret.keys(USAGE), public: secret.public_keys(USAGE) }
    }

    /// A token that says this.
    pub fn make(&self, claims: &Claims) -> String {
        seal(PREFIX, claims, &self.keys)
    }

    /// What a token says.
    ///
    /// # Errors
    /// One sentence, when it is none of this cluster's, no longer good at `now_s`, seconds since 1970, or says what no
    /// token may say.
    pub fn check(&self, token: &str, now_s: u64) -> Result<Claims, String> {
        let signed: Option<Claims> = self.public.iter().find_map(|key| unseal(PREFIX, token, key));
        let claims = signed.ok_or(
            "the token is none of this cluster's; `feedline keys token` makes one from the cluster's secret",
        )?;
        claims.check()?;
        match claims.expires_s {
            Some(end) if end <= now_s => Err(format!(
                "the token of `{}` expired {} s ago; `feedline keys token` makes a new one",
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
    fn a_token_says_what_it_was_made_with_until_it_expires() {
        let tokens = Tokens::new(&Secret::new().unwrap());
        let token = tokens.make(&claims());
        assert_eq!(tokens.check(&format!("{token}\n"), 999), Ok(claims()));
        let said = tokens.check(&token, 1_003).unwrap_err();
        assert_eq!(said, "the token of `ci` expired 3 s ago; `feedline keys token` makes a new one");
        let endless = Claims { expires_s: None, ..claims() };
        assert_eq!(tokens.check(&tokens.make(&endless), u64::MAX), Ok(endless));
    }

    #[test]
    fn a_token_of_another_cluster_is_refused() {
        let [mine, other] = [0, 1].map(|_| Tokens::new(&Secret::new().unwrap()));
        assert!(mine.check(&other.make(&claims()), 0).unwrap_err().contains("none of this cluster's"));
    }

    #[test]
    fn while_a_secret_is_exchanged_tokens_of_both_are_good() {
        let [old, new] = [0, 1].map(|_| Secret::new().unwrap());
        let both = Tokens::new(&Secret::parse(&format!("{}\n{}", old.text(), new.text())).unwrap());
        for secret in [&old, &new] {
            assert_eq!(both.check(&Tokens::new(secret).make(&claims()), 0), Ok(claims()));
        }
        assert!(Tokens::new(&old).check(&both.make(&claims()), 0).is_ok(), "the first signs");
        assert!(Tokens::new(&new).check(&both.make(&claims()), 0).is_err());
    }

    #[test]
    fn what_is_of_the_whole_cluster_is_no_tenants_however_well_it_is_signed() {
        let tokens = Tokens::new(&Secret::new().unwrap());
        for scope in Scope::OF_CLUSTER {
            let of_all = Claims { scopes: [Scope::Observe, scope].into(), tenant: None, ..claims() };
            assert!(tokens.check(&tokens.make(&of_all), 0).is_ok(), "{scope}");
            let of_one = Claims { tenant: Some("vision".to_owned()), ..of_all };
            let said = tokens.check(&tokens.make(&of_one), 0).unwrap_err();
            assert!(
                said.starts_with(&format!("a token of the tenant `vision` cannot allow `{scope}`")),
                "{said}"
            );
        }
    }

    #[test]
    fn nobody_is_a_coordinator_for_ever() {
        let tokens = Tokens::new(&Secret::new().unwrap());
        let endless =
            Claims { scopes: [Scope::Coordinate].into(), tenant: None, expires_s: None, ..claims() };
        let said = tokens.check(&tokens.make(&endless), 0).unwrap_err();
        assert!(said.contains("never expires"), "{said}");
        let short = Claims { expires_s: Some(60), ..endless };
        assert_eq!(tokens.check(&tokens.make(&short), 0), Ok(short));
    }

    #[test]
    fn scopes_are_read_by_name_and_coordinate_is_given_to_nobody() {
        for scope in Scope::GIVEN {
            assert_eq!(scope.name().parse(), Ok(scope));
        }
        assert_eq!(
            "coordinate".parse::<Scope>(),
            Err("`coordinate` is no scope; there are submit, consume, work, observe, admin".to_owned())
        );
        assert!(claims().allows(&[Scope::Observe, Scope::Consume]) && !claims().allows(&[Scope::Work]));
    }

    proptest! {
        #[test]
        fn a_token_with_another_byte_is_none(place in 0_usize..200, byte in 33_u8..127) {
            let tokens = Tokens::new(&Secret::parse(&format!("feedline-secret-1:{}", "A".repeat(43))).unwrap());
            let token = tokens.make(&claims());
            let mut changed = token.clone().into_bytes();
            let place = place % changed.len();
            prop_assume!(changed[place] != byte);
            changed[place] = byte;
            prop_assert!(tokens.check(&String::from_utf8(changed).unwrap(), 0).is_err());
        }

        #[test]
        fn nonsense_is_refused(text in ".{0,200}") {
            prop_assert!(Tokens::new(&Secret::new().unwrap()).check(&text, 0).is_err());
        }
    }
}
