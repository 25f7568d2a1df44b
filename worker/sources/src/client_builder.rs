//! Builds HTTP clients with the client options of `object_store`. [`crate::http_client`] checks the requests of stores.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use object_store::{ClientConfigKey, ClientOptions};

use crate::guard::{GuardedResolver, RequestGuard};

pub(crate) fn client_error(reason: String) -> object_store::Error {
    object_store::Error::Generic { store: "http client", source: reason.into() }
}

/// Returns the certificates of the system's authorities. Without any, the first connection with TLS fails.
fn system_authorities() -> Vec<reqwest::Certificate> {
    let certificates = feedline_access::system_authorities();
    certificates.iter().filter_map(|certificate| reqwest::Certificate::from_der(certificate).ok()).collect()
}

/// Makes ring the cryptography provider of the process, which reqwest uses. A provider that the process has already remains.
fn use_ring() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Builds a client. The options have the same effect as in `object_store`, which also offers to connect to a random one of a
/// host's addresses.
pub(crate) fn build_client(
    options: &ClientOptions,
    guard: Option<&RequestGuard>,
) -> Result<reqwest::Client, String> {
    client_builder(options, guard)?.build().map_err(setup_error)
}

/// Builds a client that also trusts the certificates of an authority. The caller checks the URL of each request.
#[cfg(feature = "kafka")]
pub(crate) fn client_with_authority(
    options: &ClientOptions,
    guard: &RequestGuard,
    authority: Option<reqwest::Certificate>,
) -> Result<reqwest::Client, String> {
    client_builder(options, Some(guard))?.tls_certs_merge(authority).build().map_err(setup_error)
}

/// A client with TLS of `ring` that trusts these authorities.
fn tls_builder(authorities: Vec<reqwest::Certificate>) -> reqwest::ClientBuilder {
    use_ring();
    reqwest::ClientBuilder::new().tls_certs_only(authorities)
}

/// A client that trusts the authorities of the system, without a guard.
#[cfg(feature = "kafka")]
pub(crate) fn plain_builder() -> reqwest::ClientBuilder {
    tls_builder(system_authorities())
}

fn client_builder(
    options: &ClientOptions,
    guard: Option<&RequestGuard>,
) -> Result<reqwest::ClientBuilder, String> {
    use ClientConfigKey as Key;
    let text = |key: Key| options.get_config_value(&key);
    let authorities =
        if parse_bool(text(Key::NoSystemCertificates))? { Vec::new() } else { system_authorities() };
    let mut builder = tls_builder(authorities)
        .user_agent(
            text(Key::UserAgent)
                .unwrap_or_else(|| concat!("feedline/", env!("CARGO_PKG_VERSION")).to_owned()),
        )
        .https_only(!parse_bool(text(Key::AllowHttp))?)
        // Compression would change the length of an object.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate();
    if let Some(guard) = guard {
        let resolver = Arc::new(GuardedResolver(guard.clone()));
        builder = builder.redirect(guard.redirect_policy()).dns_resolver(resolver);
    }
    if let Some(proxy) = text(Key::ProxyUrl) {
        let excluded = text(Key::ProxyExcludes).and_then(|hosts| reqwest::NoProxy::from_string(&hosts));
        builder = builder.proxy(reqwest::Proxy::all(proxy).map_err(setup_error)?.no_proxy(excluded));
        if let Some(certificate) = text(Key::ProxyCaCertificate) {
            let certificate = reqwest::Certificate::from_pem(certificate.as_bytes()).map_err(setup_error)?;
            builder = builder.tls_certs_merge([certificate]);
        }
    }
    if let Some(time) = parse_duration(text(Key::Timeout))? {
        builder = builder.timeout(time);
    }
    if let Some(time) = parse_duration(text(Key::ReadTimeout))? {
        builder = builder.read_timeout(time);
    }
    if let Some(time) = parse_duration(text(Key::ConnectTimeout))? {
        builder = builder.connect_timeout(time);
    }
    if let Some(time) = parse_duration(text(Key::PoolIdleTimeout))? {
        builder = builder.pool_idle_timeout(time);
    }
    if let Some(max_idle) = parse_number(text(Key::PoolMaxIdlePerHost))? {
        builder = builder.pool_max_idle_per_host(max_idle as usize);
    }
    if let Some(time) = parse_duration(text(Key::Http2KeepAliveInterval))? {
        builder = builder.http2_keep_alive_interval(time);
    }
    if let Some(time) = parse_duration(text(Key::Http2KeepAliveTimeout))? {
        builder = builder.http2_keep_alive_timeout(time);
    }
    if parse_bool(text(Key::Http2KeepAliveWhileIdle))? {
        builder = builder.http2_keep_alive_while_idle(true);
    }
    if let Some(bytes) = parse_number(text(Key::Http2MaxFrameSize))? {
        builder = builder.http2_max_frame_size(bytes);
    }
    if parse_bool(text(Key::Http1Only))? {
        builder = builder.http1_only();
    }
    if parse_bool(text(Key::Http2Only))? {
        builder = builder.http2_prior_knowledge();
    }
    if parse_bool(text(Key::AllowInvalidCertificates))? {
        builder = builder.danger_accept_invalid_certs(true);
    }
    Ok(builder)
}

fn setup_error(error: impl Display) -> String {
    format!("cannot create the HTTP client: {error}")
}

fn parse_bool(text: Option<String>) -> Result<bool, String> {
    let Some(text) = text else { return Ok(false) };
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" | "y" => Ok(true),
        "0" | "false" | "off" | "no" | "n" => Ok(false),
        _ => Err(format!("invalid boolean `{text}`: expected true or false")),
    }
}

fn parse_number(text: Option<String>) -> Result<Option<u32>, String> {
    text.map(|text| text.parse().map_err(|_| format!("invalid number `{text}`: expected an integer")))
        .transpose()
}

/// Parses a duration in the format of `object_store`, such as `1m 30s` or `500ms`.
fn parse_duration(text: Option<String>) -> Result<Option<Duration>, String> {
    let Some(text) = text else { return Ok(None) };
    let error = || format!("invalid duration `{text}`: expected a number with a unit, such as 30s");
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(error());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let count: u64 = rest[..digits].parse().map_err(|_| error())?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit_ns: u64 = match &rest[..letters] {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" | "sec" | "second" | "seconds" => 1_000_000_000,
            "m" | "min" | "minute" | "minutes" => 60_000_000_000,
            "h" | "hr" | "hour" | "hours" => 3_600_000_000_000,
            "d" | "day" | "days" => 86_400_000_000_000,
            _ => return Err(error()),
        };
        total = total.saturating_add(Duration::from_nanos(count.saturating_mul(unit_ns)));
        rest = rest[letters..].trim_start();
    }
    Ok(Some(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_booleans_are_parsed() {
        let of = |text: &str| parse_duration(Some(text.to_owned())).map(Option::unwrap);
        assert_eq!(of("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(of("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(of("1h 500ms"), Ok(Duration::from_millis(3_600_500)));
        assert_eq!(of("2 minutes"), Ok(Duration::from_secs(120)));
        assert!(of("30").is_err() && of("s").is_err() && of("").is_err());
        assert_eq!(parse_duration(None), Ok(None));
        assert_eq!((parse_bool(Some("TRUE".to_owned())), parse_bool(None)), (Ok(true), Ok(false)));
        assert!(parse_bool(Some("maybe".to_owned())).is_err());
    }

    #[test]
    fn a_client_can_be_built_with_the_authorities_of_the_system() {
        assert!(tls_builder(system_authorities()).build().is_ok());
    }

    #[test]
    fn every_option_is_applied_to_the_client() {
        use ClientConfigKey as Key;
        let options = [
            (Key::AllowHttp, "true"),
            (Key::AllowInvalidCertificates, "true"),
            (Key::ConnectTimeout, "5s"),
            (Key::Http1Only, "false"),
            (Key::Http2KeepAliveInterval, "10s"),
            (Key::Http2KeepAliveTimeout, "10s"),
            (Key::Http2KeepAliveWhileIdle, "true"),
            (Key::Http2MaxFrameSize, "65536"),
            (Key::PoolIdleTimeout, "1m"),
            (Key::PoolMaxIdlePerHost, "4"),
            (Key::ProxyUrl, "http://proxy.example.org:3128"),
            (Key::ProxyExcludes, "localhost"),
            (Key::ReadTimeout, "30s"),
            (Key::Timeout, "2m"),
            (Key::UserAgent, "tests"),
        ];
        let guard = RequestGuard::for_stores(&feedline_data::read_policy::ReadPolicy::default());
        let all =
            options.into_iter().fold(ClientOptions::new(), |all, (key, value)| all.with_config(key, value));
        assert!(build_client(&all, Some(&guard)).is_ok());
        let wrong = ClientOptions::new().with_config(Key::Timeout, "soon");
        assert_eq!(
            build_client(&wrong, Some(&guard)).unwrap_err(),
            "invalid duration `soon`: expected a number with a unit, such as 30s"
        );
    }
}
