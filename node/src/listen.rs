//! Listening: addresses as users write them, and sentences for those that cannot be had.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::failure::{Failure, reason};

/// A listener and the address that it has in fact.
#[derive(Debug)]
pub(crate) struct BoundListener {
    /// The listener.
    pub(crate) listener: TcpListener,
    /// Its address, with the port that the system chose where 0 was asked for.
    pub(crate) address: SocketAddr,
}

/// Listens on an address such as `127.0.0.1:7070`, which came with `flag`.
pub(crate) async fn bind(address: &str, flag: &str) -> Result<BoundListener, Failure> {
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => Failure::failed(format!(
            "cannot listen on {address}: the address is in use; stop the other process or choose another {flag}"
        )),
        io::ErrorKind::InvalidInput => Failure::wrong_use(format!(
            "`{address}` is no address; write {flag} HOST:PORT, such as 127.0.0.1:7070"
        )),
        _ => {
            Failure::failed(format!("cannot listen on {address}: {}; choose another {flag}", reason(&error)))
        }
    };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    Ok(BoundListener { listener, address })
}

/// The URL at which others reach a listener, unless the user names it: `0.0.0.0` is no address to connect to.
pub(crate) fn url(bound: &BoundListener, scheme: &str, flag: &str) -> Result<String, Failure> {
    if bound.address.ip().is_unspecified() {
        return Err(Failure::wrong_use(format!(
            "consumers cannot connect to {}; say with {flag} how they reach this machine",
            bound.address
        )));
    }
    Ok(format!("{scheme}://{}", bound.address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_named_with_the_fix() {
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
    async fn what_is_no_address_is_wrong_use() {
        let failure = bind("7070", "--http").await.unwrap_err();
        assert_eq!(failure.status(), 2);
        assert_eq!(
            failure.to_string(),
            "`7070` is no address; write --http HOST:PORT, such as 127.0.0.1:7070"
        );
    }

    #[tokio::test]
    async fn every_address_is_none_to_connect_to() {
        let everywhere = bind("0.0.0.0:0", "--listen").await.unwrap();
        assert_eq!(url(&everywhere, "https", "--advertise").unwrap_err().status(), 2);
        let here = bind("127.0.0.1:0", "--listen").await.unwrap();
        assert_eq!(url(&here, "http", "--advertise").unwrap(), format!("http://{}", here.address));
    }
}
