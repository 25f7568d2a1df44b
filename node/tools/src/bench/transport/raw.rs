//! The limits of the machine: a memory copy, and raw sockets between two processes.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use feedline_command::Failure;
use feedline_command::failure::reason;

use super::peer::{SenderKind, SenderProcess};

/// Size of the writes to and reads from a raw socket.
const RAW_WRITE_BYTES: usize = 256 << 10;
/// Size of each of the two buffers of the memory copy.
const COPY_BYTES: usize = 64 << 20;
/// Timeout for a read from a raw socket.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Copies between two buffers.
pub(super) struct MemoryCopy {
    source: Vec<u8>,
    target: Vec<u8>,
}

impl MemoryCopy {
    pub(super) fn new() -> Self {
        Self { source: vec![1; COPY_BYTES], target: vec![2; COPY_BYTES] }
    }

    /// Copies about `bytes`, and returns the number of bytes copied.
    pub(super) fn copy(&mut self, bytes: u64) -> u64 {
        let times = bytes.div_ceil(COPY_BYTES as u64).max(1);
        for _ in 0..times {
            self.target.copy_from_slice(black_box(&self.source));
            black_box(&mut self.target);
        }
        times * COPY_BYTES as u64
    }
}

/// A stream socket.
trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// Receives bytes from a raw socket into one buffer.
pub(super) struct RawReceiver {
    name: &'static str,
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
    pub(super) peer: SenderProcess,
}

/// Starts a sending process and connects to it over TCP.
pub(super) fn connect_tcp() -> Result<RawReceiver, Failure> {
    let peer = SenderProcess::start(SenderKind::Tcp)?;
    let stream = TcpStream::connect(&peer.address).and_then(|stream| {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(stream)
    });
    let stream = stream.map_err(|error| socket_failed(&error))?;
    Ok(RawReceiver::new("raw TCP", Box::new(stream), peer))
}

/// Starts a sending process and connects to it over a Unix socket.
pub(super) fn connect_unix() -> Result<RawReceiver, Failure> {
    let peer = SenderProcess::start(SenderKind::Unix)?;
    let stream = UnixStream::connect(&peer.address).and_then(|stream| {
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(stream)
    });
    let stream = stream.map_err(|error| socket_failed(&error))?;
    Ok(RawReceiver::new("raw Unix socket", Box::new(stream), peer))
}

impl RawReceiver {
    fn new(name: &'static str, stream: Box<dyn Stream>, peer: SenderProcess) -> Self {
        Self { name, stream, buffer: vec![0; RAW_WRITE_BYTES], peer }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Requests `bytes` and reads them.
    pub(super) fn receive(&mut self, bytes: u64) -> Result<u64, Failure> {
        self.read(bytes).map_err(|error| Failure::failed(format!("{}: {}", self.name, reason(&error))))
    }

    fn read(&mut self, bytes: u64) -> io::Result<u64> {
        self.stream.write_all(&bytes.to_le_bytes())?;
        let mut left = bytes;
        while left > 0 {
            let wanted = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = self.stream.read(&mut self.buffer[..wanted])?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= read as u64;
        }
        Ok(bytes)
    }
}

/// Serves raw TCP from a thread, and returns the address.
pub(super) fn serve_tcp() -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| socket_failed(&error))?;
    let address = listener.local_addr().map_err(|error| socket_failed(&error))?;
    std::thread::spawn(move || {
        let stream = listener.accept().and_then(|(stream, _)| stream.set_nodelay(true).map(|()| stream));
        stream.and_then(send)
    });
    Ok(address.to_string())
}

/// Serves a Unix socket from a thread, and returns its path.
pub(super) fn serve_unix() -> Result<String, Failure> {
    let folder = tempfile::tempdir().map_err(|error| socket_failed(&error))?;
    let path = folder.path().join("raw.sock");
    let listener = UnixListener::bind(&path).map_err(|error| socket_failed(&error))?;
    std::thread::spawn(move || {
        // The receiver connects once, so the path can be removed after the first connection.
        let stream = listener.accept().map(|(stream, _)| stream);
        drop(folder);
        stream.and_then(send)
    });
    Ok(path.display().to_string())
}

/// Answers each request with the requested number of bytes, until the receiver disconnects.
fn send(mut stream: impl Stream) -> io::Result<()> {
    let buffer = vec![7; RAW_WRITE_BYTES];
    let mut wanted = [0; 8];
    loop {
        stream.read_exact(&mut wanted)?;
        let mut left = u64::from_le_bytes(wanted);
        while left > 0 {
            let bytes = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            stream.write_all(&buffer[..bytes])?;
            left -= bytes as u64;
        }
    }
}

fn socket_failed(error: &io::Error) -> Failure {
    Failure::failed(format!("cannot open a socket on this host: {}", reason(error)))
}
