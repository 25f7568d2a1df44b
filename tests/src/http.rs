//! What a role shows over HTTP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// The answer to a GET, its head included.
pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the role listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers in text");
    answer
}

/// The value of a metric without labels.
pub fn metric(address: &str, name: &str) -> f64 {
    let page = get(address, "/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("there is no {name} in {page}"))
}

/// A loopback port that was free a moment ago.
pub fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
    listener.local_addr().expect("it is bound").to_string()
}
