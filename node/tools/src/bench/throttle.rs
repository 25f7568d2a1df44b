//! The proxy of the benchmark of throttled stores: it forwards HTTP requests to a store on this machine, rejects those beyond
//! a rate or limits the bandwidth, and records each request. `benches/throttle.py` controls it.
//!
//! The proxy reads commands from its standard input: `limit` begins the limits and the record, `halve` halves the allowed
//! rate, and the end of the input ends the proxy, which then writes the record.

mod limits;
mod relay;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use clap::Args;
use feedline_command::Failure;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::net::TcpListener;
use tokio::time::Instant;

use self::limits::Limits;

/// Arguments of `feedline bench throttle-proxy`.
#[derive(Args, Debug, Clone)]
pub(super) struct ThrottleArgs {
    /// The address of the store.
    #[arg(long, value_name = "ADDRESS")]
    upstream: SocketAddr,
    /// The file for the record: one line for each request with the times of its arrival and of its last byte in seconds, the
    /// status, the bytes of the body, the method and the path.
    #[arg(long, value_name = "FILE")]
    record: PathBuf,
    /// Allowed requests per second; 0 allows all.
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    rate: f64,
    /// Requests that may exceed the rate for a moment.
    #[arg(long, value_name = "N", default_value_t = 30.0)]
    burst: f64,
    /// The status of rejected requests.
    #[arg(long, value_name = "STATUS", default_value_t = 503)]
    status: u16,
    /// The `Retry-After` header of rejected requests in seconds; 0 for no header.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    retry_after: u32,
    /// Bytes per second of all responses together; 0 for no limit.
    #[arg(long, value_name = "BYTES", default_value_t = 0.0)]
    bytes_per_s: f64,
    /// The time before a request is forwarded, which a remote store would need.
    #[arg(long, value_name = "MS", default_value_t = 20)]
    latency_ms: u64,
}

/// One request. Times are those since the limits began.
#[derive(Debug, Clone)]
struct Exchange {
    arrived_s: f64,
    ended_s: f64,
    status: u16,
    bytes: u64,
    method: String,
    path: String,
}

/// What all connections share.
struct Proxy {
    args: ThrottleArgs,
    limits: Mutex<Limits>,
    record: Mutex<Vec<Exchange>>,
    bandwidth: tokio::sync::Mutex<limits::BandwidthCap>,
}

impl Proxy {
    fn limits(&self) -> std::sync::MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_to_record(&self, exchange: Exchange) {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).push(exchange);
    }
}

/// Forwards requests until the standard input ends.
pub(super) async fn run(args: ThrottleArgs) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen")?;
    println!("{}", listener.local_addr().context("cannot listen")?);
    let limits = Mutex::new(Limits::new(args.rate, args.burst));
    let bandwidth = tokio::sync::Mutex::new(limits::BandwidthCap::new(args.bytes_per_s));
    let proxy = Arc::new(Proxy { args, limits, record: Mutex::default(), bandwidth });
    let mut commands = BufReader::new(stdin()).lines();
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (connection, _) = accepted.context("cannot accept a connection")?;
                let proxy = Arc::clone(&proxy);
                // A closed connection is not an error.
                connections.spawn(async move { drop(relay::serve(connection, &proxy).await) });
            }
            Some(_) = connections.join_next() => {}
            line = commands.next_line() => match line.context("cannot read a command")?.as_deref() {
                Some("limit") => proxy.limits().start(Instant::now()),
                Some("halve") => proxy.limits().halve(Instant::now()),
                Some(other) => eprintln!("unknown command `{other}`: expected limit or halve"),
                None => break,
            },
        }
    }
    let mut text = String::new();
    for exchange in proxy.record.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let Exchange { arrived_s, ended_s, status, bytes, method, path } = exchange;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{arrived_s:.6} {ended_s:.6} {status} {bytes} {method} {path}");
    }
    std::fs::write(&proxy.args.record, text)
        .with_context(|| format!("cannot write {}", proxy.args.record.display()))?;
    Ok(())
}
