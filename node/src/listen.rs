//! Binds the addresses from the command line. An error explains why an address cannot be used.

use std::io;
use std::net::SocketAddr;

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

    #[tokio::test]
    async fn an_unspecified_address_has_no_public_url() {
        let everywhere = bind("0.0.0.0:0", "--listen").await.unwrap();
        assert_eq!(public_url(&everywhere, "https", "--advertise").unwrap_err().status(), 2);
        let here = bind("127.0.0.1:0", "--listen").await.unwrap();
        assert_eq!(public_url(&here, "http", "--advertise").unwrap(), format!("http://{}", here.address));
    }
}
