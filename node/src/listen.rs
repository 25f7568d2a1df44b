//! Binds the addresses from the command line, and parses the hosts that it advertises. An error explains why an address or
//! a host cannot be used.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpListener;

use crate::failure::{Failure, reason};

/// A listener and its actual address.
#[derive(Debug)]
pub(crate) struct BoundListener {
    /// The listener.
    pub(crate) listener: TcpListener,
    /// The address, with the port that the system chose for port 0.
    pub(crate) address: SocketAddr,
}

/// Listens on an address such as `127.0.0.1:7070`. `flag` is the name of the flag with the address, for error messages.
pub(crate) async fn bind(address: &str, flag: &str) -> Result<BoundListener, Failure> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => Failure::failed(format!(
            "cannot listen on {address}: the address is in use; stop the other process or choose another {flag}"
        )),
        io::ErrorKind::InvalidInput => Failure::invalid_usage(format!(
            "invalid address `{address}`: expected {flag} HOST:PORT, such as 127.0.0.1:7070"
        )),
        _ => {
            Failure::failed(format!("cannot listen on {address}: {}; choose another {flag}", reason(&error)))
        }
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(BoundListener { listener, address })
}

/// Parses the host of a URL: a name, an IPv4 address, or an IPv6 address with or without brackets. Returns the host in the
/// form that a URL contains.
pub(crate) fn parse_host(text: &str) -> Result<String, String> {
    let unbracketed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match unbracketed.unwrap_or(text).parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => Err(format!(
            "invalid host `{text}`: consumers cannot connect to it; pass an address of this machine, such as 10.0.0.7"
        )),
        Ok(address @ IpAddr::V6(_)) => Ok(url_host(address)),
        Ok(address @ IpAddr::V4(_)) if unbracketed.is_none() => Ok(url_host(address)),
        Err(_) if is_host_name(text) => Ok(text.to_owned()),
        _ => Err(format!(
            "invalid host `{text}`: expected a name or an address without scheme and port, such as 10.0.0.7 or fd00::7"
        )),
    }
}

/// Whether a text can be the name of a host.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    text.strip_suffix('.').unwrap_or(text).split('.').all(is_label)
}

/// Formats an address as the host of a URL.
pub(crate) fn url_host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Returns the URL at which other processes reach a listener. An unspecified address such as `0.0.0.0` has no such URL.
pub(crate) fn public_url(bound: &BoundListener, scheme: &str, flag: &str) -> Result<String, Failure> {
    if bound.address.ip().is_unspecified() {
        return Err(Failure::invalid_usage(format!(
            "consumers cannot connect to {}: pass {flag} with an address of this machine",
            bound.address
        )));
    }
    Ok(format!("{scheme}://{}", bound.address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_an_error_that_names_the_flag() {
        let first = bind("127.0.0.1:0", "--listen").await.unwrap();
        let address = first.address.to_string();
        let failure = bind(&address, "--listen").await.unwrap_err();
        assert_eq!(failure.status(), 1);
        assert_eq!(
            failure.to_string(),
            format!(
                "cannot listen on {address}: the address is in use; stop the other process or choose another --listen"
            )
        );
    }

    #[tokio::test]
    async fn an_invalid_address_is_wrong_use() {
        let failure = bind("7070", "--http").await.unwrap_err();
        assert_eq!(failure.status(), 2);
        assert_eq!(
            failure.to_string(),
            "invalid address `7070`: expected --http HOST:PORT, such as 127.0.0.1:7070"
        );
    }

    #[test]
    fn hosts_of_urls_have_ipv6_addresses_in_brackets() {
        for (text, host) in [
            ("10.0.0.7", "10.0.0.7"),
            ("fd00::7", "[fd00::7]"),
            ("[FD00::7]", "[fd00::7]"),
            ("::1", "[::1]"),
            ("worker-0.feedline.svc", "worker-0.feedline.svc"),
            ("worker_0.example.org.", "worker_0.example.org."),
        ] {
            assert_eq!(parse_host(text).as_deref(), Ok(host));
        }
        for wrong in
            ["", "10.0.0.7:7071", "http://h", "[fd00::7]:7071", "[10.0.0.7]", "[h]", "fe80::1%eth0", "a..b"]
        {
            let error = parse_host(wrong).unwrap_err();
            assert!(error.starts_with(&format!("invalid host `{wrong}`: expected a name")), "{error}");
        }
        for unspecified in ["0.0.0.0", "::", "[::]"] {
            assert!(parse_host(unspecified).unwrap_err().contains("consumers cannot connect to it"));
        }
    }

    #[tokio::test]
    async fn an_unspecified_ipv6_address_accepts_both_families() {
        let bound = bind("[::]:0", "--listen").await.unwrap();
        for host in ["127.0.0.1", "::1"] {
            let client = tokio::net::TcpStream::connect((host, bound.address.port())).await.unwrap();
            let (_, peer) = bound.listener.accept().await.unwrap();
            assert_eq!(peer.ip().to_canonical(), client.local_addr().unwrap().ip());
        }
        assert_eq!(public_url(&bound, "http", "--advertise").unwrap_err().status(), 2);
        let loopback = bind("[::1]:0", "--listen").await.unwrap();
        let port = loopback.address.port();
        assert_eq!(public_url(&loopback, "http", "--advertise").unwrap(), format!("http://[::1]:{port}"));
    }

    #[tokio::test]
    async fn an_unspecified_address_has_no_public_url() {
        let everywhere = bind("0.0.0.0:0", "--listen").await.unwrap();
        assert_eq!(public_url(&everywhere, "https", "--advertise").unwrap_err().status(), 2);
        let here = bind("127.0.0.1:0", "--listen").await.unwrap();
        assert_eq!(public_url(&here, "http", "--advertise").unwrap(), format!("http://{}", here.address));
    }
}
