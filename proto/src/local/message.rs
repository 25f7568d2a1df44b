//! Messages about shared memory between a worker and a client: three numbers each, and the descriptor of a new region.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::link_id::LinkId;

/// Encoded length of a message.
const MESSAGE_BYTES: usize = 24;

/// A message from the worker to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShmServerMessage {
    /// The id of the link. It is the first message.
    Welcome(LinkId),
    /// A new region. Its file descriptor travels with the message.
    RegionAdded { region: u64 },
    /// A region that the worker has freed.
    RegionRemoved { region: u64 },
}

/// A message from the client to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShmClientMessage {
    /// The client no longer reads the bytes of a lease.
    Release { lease: u64 },
    /// A fetch has ended. Leases after `last` did not arrive and will not arrive.
    FetchEnded { fetch: u64, last: u64 },
}

/// Encoding of a message as numbers.
pub(super) trait ShmMessage: Sized {
    fn to_numbers(self) -> [u64; 3];

    /// Returns `None` for numbers that are not a message of this type.
    fn from_numbers(numbers: [u64; 3]) -> Option<Self>;
}

impl ShmMessage for ShmServerMessage {
    fn to_numbers(self) -> [u64; 3] {
        match self {
            Self::Welcome(LinkId { link, key }) => [1, link, key],
            Self::RegionAdded { region } => [2, region, 0],
            Self::RegionRemoved { region } => [3, region, 0],
        }
    }

    fn from_numbers(numbers: [u64; 3]) -> Option<Self> {
        match numbers {
            [1, link, key] => Some(Self::Welcome(LinkId { link, key })),
            [2, region, _] => Some(Self::RegionAdded { region }),
            [3, region, _] => Some(Self::RegionRemoved { region }),
            _ => None,
        }
    }
}

impl ShmMessage for ShmClientMessage {
    fn to_numbers(self) -> [u64; 3] {
        match self {
            Self::Release { lease } => [1, lease, 0],
            Self::FetchEnded { fetch, last } => [2, fetch, last],
        }
    }

    fn from_numbers(numbers: [u64; 3]) -> Option<Self> {
        match numbers {
            [1, lease, _] => Some(Self::Release { lease }),
            [2, fetch, last] => Some(Self::FetchEnded { fetch, last }),
            _ => None,
        }
    }
}

/// Sends a message. If the future is dropped before it completes, the socket is unusable.
///
/// # Errors
/// Returns an error if the other end has closed the socket.
pub(super) async fn send(
    stream: &UnixStream,
    message: impl ShmMessage,
    mut descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut bytes = [0; MESSAGE_BYTES];
    for (part, number) in bytes.chunks_exact_mut(8).zip(message.to_numbers()) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    let mut sent = 0;
    while sent < MESSAGE_BYTES {
        let more = || try_send(stream, &bytes[sent..], descriptor);
        match stream.async_io(Interest::WRITABLE, more).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            more => sent += more,
        }
        // The descriptor travels with the first byte.
        descriptor = None;
    }
    Ok(())
}

fn try_send(stream: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors
        && !control.push(SendAncillaryMessage::ScmRights(descriptors))
    {
        return Err(io::Error::other("the control buffer is too small for a descriptor"));
    }
    Ok(rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives a message and its descriptor; `None` if the other end has closed the socket. If the future is dropped before it
/// completes, the socket is unusable.
///
/// # Errors
/// Returns an error if the connection breaks within a message, or the bytes are not a message.
pub(super) async fn receive<M: ShmMessage>(stream: &UnixStream) -> io::Result<Option<(M, Option<OwnedFd>)>> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut descriptor = None;
    let mut received = 0;
    while received < MESSAGE_BYTES {
        let more =
            stream.async_io(Interest::READABLE, || try_receive(stream, &mut bytes[received..])).await?;
        let (more, found) = more;
        descriptor = descriptor.or(found);
        match (more, received) {
            (0, 0) => return Ok(None),
            (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => received += more,
        }
    }
    let mut numbers = [0; 3];
    for (number, part) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = u64::from_le_bytes(part.try_into().map_err(io::Error::other)?);
    }
    let message = M::from_numbers(numbers).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((message, descriptor)))
}

fn try_receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last().or(descriptor);
        }
    }
    Ok((received.bytes, descriptor))
}
