//! The settings of a connection to a cluster: servers, TLS and SASL. Debug output contains no values.

use std::collections::BTreeMap;
use std::fmt;

use rdkafka::ClientConfig;

use crate::error::KafkaError;
use crate::memory::ClientMemory;

/// The names of all options.
pub const OPTION_NAMES: [&str; 20] = [
    TLS,
    "kafka_ca_file",
    "kafka_ca_pem",
    "kafka_certificate_file",
    "kafka_certificate_pem",
    "kafka_key_file",
    "kafka_key_pem",
    KEY_PASSWORD,
    MECHANISM,
    USERNAME,
    PASSWORD,
    TOKEN_URL,
    CLIENT_ID,
    CLIENT_SECRET,
    SCOPE,
    TOKEN_CA,
    "kafka_registry_username",
    "kafka_registry_password",
    "kafka_registry_token",
    "kafka_registry_ca_file",
];

const TLS: &str = "kafka_tls";
const KEY_PASSWORD: &str = "kafka_key_password";
const MECHANISM: &str = "kafka_sasl_mechanism";
const USERNAME: &str = "kafka_username";
const PASSWORD: &str = "kafka_password";
const TOKEN_URL: &str = "kafka_oauth_token_url";
const CLIENT_ID: &str = "kafka_oauth_client_id";
const CLIENT_SECRET: &str = "kafka_oauth_client_secret";
const SCOPE: &str = "kafka_oauth_scope";
const TOKEN_CA: &str = "kafka_oauth_ca_file";

/// Options of TLS, with the names in librdkafka.
const TLS_OPTIONS: [(&str, &str); 7] = [
    ("kafka_ca_file", "ssl.ca.location"),
    ("kafka_ca_pem", "ssl.ca.pem"),
    ("kafka_certificate_file", "ssl.certificate.location"),
    ("kafka_certificate_pem", "ssl.certificate.pem"),
    ("kafka_key_file", "ssl.key.location"),
    ("kafka_key_pem", "ssl.key.pem"),
    (KEY_PASSWORD, "ssl.key.password"),
];

/// Minimum length of a value that is removed from messages. Shorter values are assumed not to be secret.
const MIN_SECRET_BYTES: usize = 4;

/// The mechanism of SASL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mechanism {
    Plain,
    ScramSha256,
    ScramSha512,
    OauthBearer,
}

impl Mechanism {
    const ALL: [Self; 4] = [Self::Plain, Self::ScramSha256, Self::ScramSha512, Self::OauthBearer];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::OauthBearer => "OAUTHBEARER",
        }
    }
}

/// The servers of a cluster, and the options of the connection.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ConnectionSettings {
    servers: String,
    options: BTreeMap<String, String>,
}

impl fmt::Debug for ConnectionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.options.keys().collect();
        f.debug_struct("ConnectionSettings").field("servers", &self.servers).field("options", &names).finish()
    }
}

impl ConnectionSettings {
    /// Creates settings. `servers` is a list such as `host1:9092,host2:9092`. Ignores options of other stores.
    pub fn new(servers: impl Into<String>, options: impl IntoIterator<Item = (String, String)>) -> Self {
        let options = options.into_iter().filter(|(name, _)| OPTION_NAMES.contains(&name.as_str())).collect();
        Self { servers: servers.into(), options }
    }

    /// The value of an option.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// The URL, client id, client secret and scope of the OAuth token endpoint; `None` without OAUTHBEARER.
    pub fn oauth(&self) -> Option<(&str, &str, &str, Option<&str>)> {
        let of = |name| self.option(name);
        Some((of(TOKEN_URL)?, of(CLIENT_ID)?, of(CLIENT_SECRET)?, of(SCOPE)))
    }

    /// Replaces the values of the options in a text, such as an error message, with `...`.
    pub(crate) fn without_values(&self, text: &str) -> String {
        let is_secret = |(name, value): &(&String, &String)| {
            value.len() >= MIN_SECRET_BYTES
                && *name != MECHANISM
                && *name != TLS
                && !name.ends_with("_file")
                && !name.ends_with("_url")
        };
        let mut secrets: Vec<&str> =
            self.options.iter().filter(is_secret).map(|(_, value)| value.as_str()).collect();
        // A value may contain another one.
        secrets.sort_by_key(|value| std::cmp::Reverse(value.len()));
        secrets.into_iter().fold(text.to_owned(), |text, value| text.replace(value, "..."))
    }

    /// Returns the configuration of librdkafka for a reader.
    pub(crate) fn client_config(
        &self,
        read_committed: bool,
        memory: &ClientMemory,
    ) -> Result<ClientConfig, KafkaError> {
        let mut config = self.connection_config()?;
        config.set("isolation.level", if read_committed { "read_committed" } else { "read_uncommitted" });
        for (name, value) in READER_CONFIG {
            config.set(name, value);
        }
        let response_bytes = memory.response_bytes();
        for (name, value) in [
            ("queued.max.messages.kbytes", memory.fetch_bytes() / 1000),
            ("fetch.message.max.bytes", memory.fetch_bytes()),
            ("fetch.max.bytes", response_bytes),
            // A response also contains headers.
            ("receive.message.max.bytes", memory.batch_bytes().max(response_bytes + (64 << 10))),
        ] {
            config.set(name, value.to_string());
        }
        Ok(config)
    }

    /// Returns the configuration of librdkafka for a connection to the cluster.
    pub(crate) fn connection_config(&self) -> Result<ClientConfig, KafkaError> {
        check_options(self.options.iter().map(|(name, value)| (name.as_str(), value.as_str())))
            .map_err(KafkaError::permanent)?;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.servers).set("client.id", "feedline");
        let mechanism = self.option(MECHANISM).and_then(find_mechanism);
        let protocol = match (uses_tls(|name| self.option(name)), mechanism) {
            (false, None) => "plaintext",
            (true, None) => "ssl",
            (false, Some(_)) => "sasl_plaintext",
            (true, Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(mechanism) = mechanism {
            config.set("sasl.mechanisms", mechanism.name());
        }
        for (name, target) in
            TLS_OPTIONS.into_iter().chain([(USERNAME, "sasl.username"), (PASSWORD, "sasl.password")])
        {
            if let Some(value) = self.option(name) {
                config.set(target, value);
            }
        }
        if self.option("kafka_ca_file").is_none() && self.option("kafka_ca_pem").is_none() {
            config.set("ssl.ca.location", "probe");
        }
        Ok(config)
    }
}

/// Settings of every reader.
const READER_CONFIG: [(&str, &str); 12] = [
    ("auto.offset.reset", "error"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("enable.partition.eof", "true"),
    ("check.crcs", "true"),
    ("allow.auto.create.topics", "false"),
    ("queued.min.messages", "1000000"),
    // A partition that starts to be fetched waits for a request that runs.
    ("fetch.wait.max.ms", "50"),
    ("fetch.error.backoff.ms", "100"),
    // By default, a partition whose queue was full is not fetched for a second. The queues are small.
    ("fetch.queue.backoff.ms", "10"),
    ("reconnect.backoff.max.ms", "1000"),
    ("socket.keepalive.enable", "true"),
];

fn find_mechanism(name: &str) -> Option<Mechanism> {
    Mechanism::ALL.into_iter().find(|mechanism| mechanism.name().eq_ignore_ascii_case(name))
}

fn uses_tls<'a>(option: impl Fn(&str) -> Option<&'a str>) -> bool {
    match option(TLS) {
        Some(value) => value.eq_ignore_ascii_case("true"),
        None => TLS_OPTIONS.iter().any(|(name, _)| option(name).is_some()),
    }
}

/// Checks that the options of a connection belong together. Ignores options of other stores.
///
/// # Errors
/// Returns a message with the names of options and without secret values.
pub fn check_options<'a>(options: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<(), String> {
    let options: BTreeMap<&str, &str> =
        options.into_iter().filter(|(name, _)| OPTION_NAMES.contains(name)).collect();
    let has = |name: &str| options.contains_key(name);
    if options.get(TLS).is_some_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "true" | "false"))
    {
        return Err(format!("`{TLS}` must be `true` or `false`"));
    }
    if options.get(TOKEN_URL).is_some_and(|url| has_user_info(url)) {
        return Err(format!(
            "`{TOKEN_URL}` contains a user name or password: set `{CLIENT_ID}` and `{CLIENT_SECRET}` instead"
        ));
    }
    let names = || Mechanism::ALL.map(Mechanism::name).join(", ");
    let Some(mechanism) = options.get(MECHANISM) else {
        return match [USERNAME, PASSWORD, TOKEN_URL, CLIENT_ID, CLIENT_SECRET]
            .into_iter()
            .find(|name| has(name))
        {
            Some(name) => Err(format!("`{name}` needs `{MECHANISM}`: set it to one of {}", names())),
            None => Ok(()),
        };
    };
    let needed: &[&str] = match find_mechanism(mechanism) {
        Some(Mechanism::OauthBearer) => &[TOKEN_URL, CLIENT_ID, CLIENT_SECRET],
        Some(_) => &[USERNAME, PASSWORD],
        None => return Err(format!("invalid `{MECHANISM}`: expected one of {}", names())),
    };
    match needed.iter().find(|name| !has(name)) {
        Some(name) => Err(format!("`{MECHANISM}: {}` needs `{name}`", mechanism.to_ascii_uppercase())),
        None => Ok(()),
    }
}

/// Whether a URL contains a user name or password. A password may contain `/`, which ends the authority before the `@`, so a colon
/// without a port number also counts as a password.
fn has_user_info(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return url.contains('@') };
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let after_brackets = authority.rsplit(']').next().unwrap_or_default();
    let port = after_brackets.split_once(':').map_or("", |(_, port)| port);
    authority.contains('@') || !port.bytes().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::ClientLimits;

    fn settings(options: &[(&str, &str)]) -> ConnectionSettings {
        ConnectionSettings::new(
            "a:1",
            options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    fn protocol(options: &[(&str, &str)]) -> String {
        let config = settings(options).connection_config().expect("the options are valid");
        config.get("security.protocol").expect("it is always set").to_owned()
    }

    #[test]
    fn the_protocol_follows_from_the_options() {
        let scram =
            [("kafka_sasl_mechanism", "scram-sha-256"), ("kafka_username", "u"), ("kafka_password", "p")];
        assert_eq!(protocol(&[]), "plaintext");
        assert_eq!(protocol(&[("kafka_tls", "true")]), "ssl");
        assert_eq!(protocol(&[("kafka_ca_file", "/ca.pem")]), "ssl");
        assert_eq!(protocol(&scram), "sasl_plaintext");
        assert_eq!(protocol(&[&scram[..], &[("kafka_tls", "True")]].concat()), "sasl_ssl");
        let limits = ClientLimits { budget_bytes: 8 << 20, block_bytes: 2 << 20, prefetch_bytes: 1 << 20 };
        let memory = ClientMemory::new(limits, Arc::default());
        let config = settings(&scram).client_config(false, &memory).expect("the options are valid");
        assert_eq!(config.get("sasl.mechanisms"), Some("SCRAM-SHA-256"));
        assert_eq!(config.get("isolation.level"), Some("read_uncommitted"));
        assert_eq!(config.get("fetch.max.bytes"), Some("1048576"));
        assert_eq!(config.get("fetch.queue.backoff.ms"), Some("10"));
        assert_eq!(config.get("receive.message.max.bytes"), Some("3145728"), "a block and a response");
        assert!(config.create_native_config().is_ok(), "librdkafka accepts the values");
    }

    #[test]
    fn options_that_do_not_belong_together_are_rejected() {
        let error =
            |options: &[(&str, &str)]| check_options(options.iter().copied()).expect_err("invalid options");
        assert_eq!(error(&[("kafka_tls", "HUSH")]), "`kafka_tls` must be `true` or `false`");
        assert!(error(&[("kafka_password", "HUSH")]).contains("`kafka_sasl_mechanism`"));
        assert!(error(&[("kafka_sasl_mechanism", "HUSH")]).contains("expected one of PLAIN, SCRAM-SHA-256"));
        assert_eq!(
            error(&[("kafka_sasl_mechanism", "plain"), ("kafka_username", "HUSH")]),
            "`kafka_sasl_mechanism: PLAIN` needs `kafka_password`"
        );
        assert!(error(&[("kafka_sasl_mechanism", "oauthbearer")]).contains("kafka_oauth_token_url"));
        assert_eq!(check_options([("aws_region", "x")]), Ok(()));
    }

    #[test]
    fn a_token_url_with_a_password_is_rejected_without_repeating_it() {
        let check = |url: &str| {
            check_options([
                ("kafka_sasl_mechanism", "oauthbearer"),
                ("kafka_oauth_client_id", "id"),
                ("kafka_oauth_client_secret", "secret"),
                ("kafka_oauth_token_url", url),
            ])
        };
        for url in [
            "https://id:HUSH@idp.example/token",
            "https://HUSH@idp.example/token",
            "https://id:HUSH/HUSH@idp.example/token",
            "https:/id:HUSH@idp.example/token",
            "HTTPS://id:HUSH@[::1]:8080/token",
        ] {
            let error = check(url).expect_err("the URL has user information");
            assert_eq!(
                error,
                "`kafka_oauth_token_url` contains a user name or password: set `kafka_oauth_client_id` and `kafka_oauth_client_secret` \
                 instead"
            );
        }
        for url in
            ["https://idp.example/token", "http://127.0.0.1:8080/a@b/token", "https://[::1]:8080/token?a=b@c"]
        {
            assert_eq!(check(url), Ok(()), "{url}");
        }
    }

    #[test]
    fn values_do_not_appear_in_text() {
        let settings =
            settings(&[("kafka_password", "HUSHHUSH"), ("kafka_ca_file", "/ca.pem"), ("aws_region", "x")]);
        let debug = format!("{settings:?}");
        assert!(
            debug.contains("kafka_password") && !debug.contains("HUSH") && !debug.contains("aws"),
            "{debug}"
        );
        assert_eq!(settings.without_values("HUSHHUSH at /ca.pem"), "... at /ca.pem");
        let settings = self::settings(&[(CLIENT_ID, "client"), (CLIENT_SECRET, "client-secret-3")]);
        assert_eq!(settings.without_values("client-secret-3 of client"), "... of ...");
        assert_eq!(self::settings(&[(TLS, "true")]).without_values("it is true"), "it is true");
    }
}
