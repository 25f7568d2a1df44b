//! The limits of the machine: a memory copy, and plain sockets between two processes.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use super::RAW_WRITE_BYTES;
use super::peer::{Kind, Peer};
use crate::failure::{Failure, reason};

/// A memory copy works on buffers of this size.
const COPY_BYTES: usize = 64 << 20;
/// Longest wait for bytes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Copies between two buffers.
pub(super) struct Copy {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copy {
    pub(super) fn new() -> Self {
        Self { from: vec![1; COPY_BYTES], to: vec![2; COPY_BYTES] }
    }

    /// Copies about `bytes`; says how many.
    pub(super) fn turn(&mut self, bytes: u64) -> u64 {
        let times = bytes.div_ceil(COPY_BYTES as u64).max(1);
        for _ in 0..times {
            self.to.copy_from_slice(black_box(&self.from));
            black_box(&mut self.to);
        }
        times * COPY_BYTES as u64
    }
}

/// A stream socket.
trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// Reads from a plain socket into one buffer.
pub(super) struct Receiver {
    name: &'static str,
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
    pub(super) peer: Peer,
}

/// A receiver of plain TCP.
pub(super) fn tcp() -> Result<Receiver, Failure> {
    let peer = Peer::start(Kind::Tcp)?;
    let stream = TcpStream::connect(&peer.address).and_then(|stream| {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    });
    let stream = stream.map_err(|error| unreachable(&error))?;
    Ok(Receiver::new("raw TCP", Box::new(stream), peer))
}

/// A receiver of a plain Unix socket.
pub(super) fn unix() -> Result<Receiver, Failure> {
    let peer = Peer::start(Kind::Unix)?;
    let stream = UnixStream::connect(&peer.address).and_then(|stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    });
    let stream = stream.map_err(|error| unreachable(&error))?;
    Ok(Receiver::new("raw Unix socket", Box::new(stream), peer))
}

impl Receiver {
    fn new(name: &'static str, stream: Box<dyn Stream>, peer: Peer) -> Self {
        Self { name, stream, buffer: vec![0; RAW_WRITE_BYTES], peer }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Asks for `bytes` and reads them.
    pub(super) fn turn(&mut self, bytes: u64) -> Result<u64, Failure> {
        self.receive(bytes).map_err(|error| Failure::failed(format!("{}: {}", self.name, reason(&error))))
    }

    fn receive(&mut self, bytes: u64) -> io::Result<u64> {
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

/// Serves plain TCP from a thread; says where.
pub(super) fn serve_tcp() -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| unreachable(&error))?;
    let address = listener.local_addr().map_err(|error| unreachable(&error))?;
    std::thread::spawn(move || {
        let stream = listener.accept().and_then(|(stream, _)| stream.set_nodelay(true).map(|()| stream));
        stream.and_then(send)
    });
    Ok(address.to_string())
}

/// Serves a Unix socket from a thread; says where.
pub(super) fn serve_unix() -> Result<String, Failure> {
    let folder = tempfile::tempdir().map_err(|error| unreachable(&error))?;
    let path = folder.path().join("raw.sock");
    let listener = UnixListener::bind(&path).map_err(|error| unreachable(&error))?;
    std::thread::spawn(move || {
        // The only connection is accepted by then; the path is of no more use.
        let stream = listener.accept().map(|(stream, _)| stream);
        drop(folder);
        stream.and_then(send)
    });
    Ok(path.display().to_string())
}

/// Sends as many bytes as are asked for, again and again, until the receiver is gone.
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

fn unreachable(error: &io::Error) -> Failure {
    Failure::failed(format!("cannot open a socket on this host: {}", reason(error)))
}
