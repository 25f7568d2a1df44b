//! Reads the HTTP server of a role.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;

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

/// Returns a loopback address with a port that was free a moment ago, for programs that do not report their port. Another
/// process may have taken it since.
pub fn free_port() -> String {
    free_ports(1).remove(0)
}

/// Returns several free addresses: see [`free_port`].
pub fn free_ports(count: usize) -> Vec<String> {
    static RETURNED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut returned = RETURNED.lock().expect("nothing panics with it");
    let mut listeners = Vec::new();
    while listeners.len() < count {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
        let address = listener.local_addr().expect("it is bound");
        if returned.insert(address.port()) {
            listeners.push((listener, address.to_string()));
        }
    }
    listeners.into_iter().map(|(_, address)| address).collect()
}
