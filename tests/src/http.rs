//! Reads the HTTP server of a role.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns the response to a GET request, including its headers.
pub fn get(address: &str, path: &str) -> String {
    try_get(address, path).expect("the role listens and answers in text")
}

fn try_get(address: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns the value of a metric without labels.
pub fn metric(address: &str, name: &str) -> f64 {
    let page = get(address, "/metrics");
    value(&page, name).unwrap_or_else(|| panic!("there is no {name} in {page}"))
}

/// Returns the value of a metric without labels; `None` if the role does not answer or does not export it.
pub fn try_metric(address: &str, name: &str) -> Option<f64> {
    value(&try_get(address, "/metrics").ok()?, name)
}

fn value(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Returns a loopback address with a free port, for programs that do not report their port.
pub fn free_port() -> String {
    free_ports(1).remove(0)
}

/// Returns several free addresses: see [`free_port`].
///
/// No port is returned twice in a process. The ports are below those that Linux gives to outgoing connections and to listeners at
/// port 0, so that nothing else takes one before the program listens.
pub fn free_ports(count: usize) -> Vec<String> {
    static USED: AtomicU32 = AtomicU32::new(0);
    // The tests of other processes begin elsewhere.
    let first = std::process::id().wrapping_mul(PORTS_OF_A_PROCESS);
    let address = |used: u32| {
        let port = PORTS.start + first.wrapping_add(used) % (PORTS.end - PORTS.start);
        format!("127.0.0.1:{port}")
    };
    std::iter::repeat_with(|| address(USED.fetch_add(1, Ordering::Relaxed)))
        .filter(|address| TcpListener::bind(address).is_ok())
        .take(count)
        .collect()
}

const PORTS: Range<u32> = 10_000..32_000;
const PORTS_OF_A_PROCESS: u32 = 100;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_port_is_returned_twice() {
        let ports: HashSet<String> = (0..200).flat_map(|_| free_ports(5)).collect();
        assert_eq!(ports.len(), 1000);
    }
}
