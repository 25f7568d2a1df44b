//! What lender and borrower of memory say to each other: three numbers at a time, and with a region its descriptor.

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

const BYTES: usize = 24;

/// What the lender says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShmServerMessage {
    /// First and once: what the link is called.
    Welcome(LinkId),
    /// A new region; its descriptor comes along.
    Region { region: u64 },
    /// A region that is of no use any more.
    Gone { region: u64 },
}

/// What the borrower says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShmClientMessage {
    /// The bytes of a lease are no longer read.
    Release { lease: u64 },
    /// A fetch has ended; of its leases none beyond `last` arrived or ever will.
    Ended { fetch: u64, last: u64 },
}

/// A message as it travels.
pub(super) trait ShmMessage: Sized {
    fn to_numbers(self) -> [u64; 3];

    /// `None` for what is no such message.
    fn from_numbers(numbers: [u64; 3]) -> Option<Self>;
}

impl ShmMessage for ShmServerMessage {
    fn to_numbers(self) -> [u64; 3] {
        match self {
            Self::Welcome(LinkId { link, key }) => [1, link, key],
            Self::Region { region } => [2, region, 0],
            Self::Gone { region } => [3, region, 0],
        }
    }

    fn from_numbers(numbers: [u64; 3]) -> Option<Self> {
        match numbers {
            [1, link, key] => Some(Self::Welcome(LinkId { link, key })),
            [2, region, _] => Some(Self::Region { region }),
            [3, region, _] => Some(Self::Gone { region }),
            _ => None,
        }
    }
}

impl ShmMessage for ShmClientMessage {
    fn to_numbers(self) -> [u64; 3] {
        match self {
            Self::Release { lease } => [1, lease, 0],
            Self::Ended { fetch, last } => [2, fetch, last],
        }
    }

    fn from_numbers(numbers: [u64; 3]) -> Option<Self> {
        match numbers {
            [1, lease, _] => Some(Self::Release { lease }),
            [2, fetch, last] => Some(Self::Ended { fetch, last }),
            _ => None,
        }
    }
}

/// Sends a message. A future that is dropped midway leaves the socket of no use.
///
/// # Errors
/// When the other end has gone.
pub(super) async fn send(
    stream: &UnixStream,
    message: impl ShmMessage,
    mut descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut bytes = [0; BYTES];
    for (place, number) in bytes.chunks_exact_mut(8).zip(message.to_numbers()) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    let mut sent = 0;
    while sent < BYTES {
        let more = || try_send(stream, &bytes[sent..], descriptor);
        match stream.async_io(Interest::WRITABLE, more).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            more => sent += more,
        }
        // The descriptor went with the first byte.
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
        return Err(io::Error::other("there is no room for a descriptor"));
    }
    Ok(rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives a message and the descriptor that came along; `None` when the other end has closed. A future that is dropped
/// midway leaves the socket of no use.
///
/// # Errors
/// When the other end has gone, or sent what is no message.
pub(super) async fn receive<M: ShmMessage>(stream: &UnixStream) -> io::Result<Option<(M, Option<OwnedFd>)>> {
    let mut bytes = [0; BYTES];
    let mut descriptor = None;
    let mut received = 0;
    while received < BYTES {
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
    for (number, place) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = u64::from_le_bytes(place.try_into().map_err(io::Error::other)?);
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
