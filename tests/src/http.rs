//! What a role shows over HTTP.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

/// The answer to a GET, its head included.
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

/// The value of a metric without labels.
pub fn metric(address: &str, name: &str) -> f64 {
    let page = get(address, "/metrics");
    value(&page, name).unwrap_or_else(|| panic!("there is no {name} in {page}"))
}

/// The value of a metric without labels; `None` while the role does not show it, or is not there.
pub fn try_metric(address: &str, name: &str) -> Option<f64> {
    value(&try_get(address, "/metrics").ok()?, name)
}

fn value(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// A loopback port that was free a moment ago, and that another process may have taken since: for what does not say which one
/// it was given.
pub fn free_port() -> String {
    free_ports(1).remove(0)
}

/// Several of them.
pub fn free_ports(count: usize) -> Vec<String> {
    let bind = |_| TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
    let listeners: Vec<TcpListener> = (0..count).map(bind).collect();
    let address = |listener: &TcpListener| listener.local_addr().expect("it is bound").to_string();
    listeners.iter().map(address).collect()
}
