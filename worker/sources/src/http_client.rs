//! The HTTP client under object stores, guarded: options as `object_store` has them, redirects and names as the guard has them.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};

use crate::guard::{GuardError, GuardedResolver, RequestGuard, refused};

/// Makes guarded clients.
#[derive(Debug)]
pub(crate) struct GuardedConnector(pub(crate) RequestGuard);

impl HttpConnector for GuardedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = client(options, &self.0)
            .map_err(|reason| object_store::Error::Generic { store: "http client", source: reason.into() })?;
        Ok(HttpClient::new(Guarded { client, guard: self.0.clone() }))
    }
}

/// A client whose requests are looked at.
#[derive(Debug)]
struct Guarded {
    client: reqwest::Client,
    guard: RequestGuard,
}

#[async_trait]
impl HttpService for Guarded {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.guard.check(&request.uri().to_string()).map_err(refusal)?;
        let answer = HttpService::call(&self.client, request).await;
        // A name that may not be resolved looks like one that cannot be, which would be tried again for a minute.
        answer.map_err(|error| match refused(&error) {
            Some(refused) => refusal(refused.clone()),
            None => error,
        })
    }
}

/// An error that is not tried again.
fn refusal(refused: GuardError) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, refused)
}

/// The client that `object_store` would make of these options, but for the guard.
fn client(options: &ClientOptions, guard: &RequestGuard) -> Result<reqwest::Client, String> {
    use ClientConfigKey as Key;
    let text = |key: Key| options.get_config_value(&key);
    let mut builder = reqwest::ClientBuilder::new()
        .user_agent(
            text(Key::UserAgent)
                .unwrap_or_else(|| concat!("feedline/", env!("CARGO_PKG_VERSION")).to_owned()),
        )
        .redirect(guard.redirects())
        .dns_resolver(Arc::new(GuardedResolver(guard.clone())))
        .https_only(!truth(text(Key::AllowHttp))?)
        // A length must be the object's own.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate();
    if let Some(proxy) = text(Key::ProxyUrl) {
        let excluded = text(Key::ProxyExcludes).and_then(|hosts| reqwest::NoProxy::from_string(&hosts));
        builder = builder.proxy(reqwest::Proxy::all(proxy).map_err(told)?.no_proxy(excluded));
        if let Some(certificate) = text(Key::ProxyCaCertificate) {
            let certificate = reqwest::Certificate::from_pem(certificate.as_bytes()).map_err(told)?;
            builder = builder.add_root_certificate(certificate);
        }
    }
    if let Some(time) = duration(text(Key::Timeout))? {
        builder = builder.timeout(time);
    }
    if let Some(time) = duration(text(Key::ConnectTimeout))? {
        builder = builder.connect_timeout(time);
    }
    if let Some(time) = duration(text(Key::PoolIdleTimeout))? {
        builder = builder.pool_idle_timeout(time);
    }
    if let Some(most) = number(text(Key::PoolMaxIdlePerHost))? {
        builder = builder.pool_max_idle_per_host(most as usize);
    }
    if let Some(time) = duration(text(Key::Http2KeepAliveInterval))? {
        builder = builder.http2_keep_alive_interval(time);
    }
    if let Some(time) = duration(text(Key::Http2KeepAliveTimeout))? {
        builder = builder.http2_keep_alive_timeout(time);
    }
    if truth(text(Key::Http2KeepAliveWhileIdle))? {
        builder = builder.http2_keep_alive_while_idle(true);
    }
    if let Some(bytes) = number(text(Key::Http2MaxFrameSize))? {
        builder = builder.http2_max_frame_size(bytes);
    }
    if truth(text(Key::Http1Only))? {
        builder = builder.http1_only();
    }
    if truth(text(Key::Http2Only))? {
        builder = builder.http2_prior_knowledge();
    }
    if truth(text(Key::AllowInvalidCertificates))? {
        builder = builder.danger_accept_invalid_certs(true);
    }
    builder.build().map_err(told)
}

fn told(error: impl Display) -> String {
    format!("the HTTP client cannot be set up: {error}")
}

fn truth(text: Option<String>) -> Result<bool, String> {
    let Some(text) = text else { return Ok(false) };
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" | "y" => Ok(true),
        "0" | "false" | "off" | "no" | "n" => Ok(false),
        _ => Err(format!("`{text}` is neither true nor false")),
    }
}

fn number(text: Option<String>) -> Result<Option<u32>, String> {
    text.map(|text| text.parse().map_err(|_| format!("`{text}` is not a number"))).transpose()
}

/// A time as `object_store` writes it: `1m 30s`, `500ms`.
fn duration(text: Option<String>) -> Result<Option<Duration>, String> {
    let Some(text) = text else { return Ok(None) };
    let bad = || format!("`{text}` is not a time such as 30s");
    let mut whole = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let count: u64 = rest[..digits].parse().map_err(|_| bad())?;
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
            _ => return Err(bad()),
        };
        whole = whole.saturating_add(Duration::from_nanos(count.saturating_mul(unit_ns)));
        rest = rest[letters..].trim_start();
    }
    Ok(Some(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        let of = |text: &str| duration(Some(text.to_owned())).map(Option::unwrap);
        assert_eq!(of("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(of("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(of("1h 500ms"), Ok(Duration::from_millis(3_600_500)));
        assert_eq!(of("2 minutes"), Ok(Duration::from_secs(120)));
        assert!(of("30").is_err() && of("s").is_err() && of("").is_err());
        assert_eq!(duration(None), Ok(None));
        assert_eq!((truth(Some("TRUE".to_owned())), truth(None)), (Ok(true), Ok(false)));
        assert!(truth(Some("maybe".to_owned())).is_err());
    }

    #[test]
    fn a_client_is_made_of_every_option() {
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
            (Key::Timeout, "2m"),
            (Key::UserAgent, "tests"),
        ];
        let guard = RequestGuard::of_stores(&feedline_data::read_policy::ReadPolicy::default());
        let all =
            options.into_iter().fold(ClientOptions::new(), |all, (key, value)| all.with_config(key, value));
        assert!(client(&all, &guard).is_ok());
        let wrong = ClientOptions::new().with_config(Key::Timeout, "soon");
        assert_eq!(client(&wrong, &guard).unwrap_err(), "`soon` is not a time such as 30s");
    }
}
