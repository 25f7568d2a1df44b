//! The header and the trailer of a gzip member (RFC 1952) or of a zlib stream (RFC 1950).

use simd_adler32::Adler32;

/// What surrounds a deflate stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Gzip,
    Zlib,
}

pub(super) const MAX_TRAILER_BYTES: usize = 8;

impl Framing {
    /// Whether a file may begin with these two bytes, which state the method and the size of the window. A dictionary is not supported.
    pub(crate) fn is_zlib_start(first: u8, second: u8) -> bool {
        let is_deflate = first & 0x0f == 8 && first >> 4 <= 7;
        is_deflate && second & ZLIB_DICTIONARY == 0 && u16::from_be_bytes([first, second]).is_multiple_of(31)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
        }
    }

    /// The part of a file that has a header and a trailer.
    pub(super) fn member(self) -> &'static str {
        match self {
            Self::Gzip => "gzip member",
            Self::Zlib => "zlib stream",
        }
    }

    pub(super) fn trailer_bytes(self) -> usize {
        match self {
            Self::Gzip => MAX_TRAILER_BYTES,
            Self::Zlib => 4,
        }
    }
}

/// The flag of a preset dictionary in the second byte of a zlib stream.
const ZLIB_DICTIONARY: u8 = 1 << 5;

/// The flags of a header.
const HAS_HEADER_CRC: u8 = 1 << 1;
const HAS_EXTRA: u8 = 1 << 2;
const HAS_NAME: u8 = 1 << 3;
const HAS_COMMENT: u8 = 1 << 4;
const RESERVED: u8 = 0xe0;

const FIXED_BYTES: usize = 10;

/// Reads a header in pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeaderReader {
    framing: Framing,
    part: Part,
    /// The flags of parts that follow.
    flags: u8,
    /// The checksum of the header so far, if the header states its checksum.
    crc: Option<u32>,
    /// The first bytes of the extra field.
    extra: [u8; 4],
    extra_bytes: usize,
}

/// The identification and the size of the subfield with the size of a member, which bgzip writes (Sequence Alignment/Map Format
/// Specification, section 4.1).
pub(super) const SIZE_FIELD: [u8; 4] = [b'B', b'C', 2, 0];

#[derive(Debug, Clone, Copy)]
enum Part {
    Fixed { at: usize },
    // The second byte of a zlib stream.
    Zlib { first: u8 },
    ExtraLength { low: Option<u8> },
    Extra { left: usize },
    Name,
    Comment,
    Crc { low: Option<u8> },
}

impl HeaderReader {
    pub(super) fn new(framing: Framing) -> Self {
        Self { framing, part: Part::Fixed { at: 0 }, flags: 0, crc: None, extra: [0; 4], extra_bytes: 0 }
    }

    /// Whether the member states its size, and is therefore small.
    pub(super) fn states_size(&self) -> bool {
        self.extra == SIZE_FIELD
    }

    /// Whether no byte was read.
    pub(super) fn is_at_start(&self) -> bool {
        matches!(self.part, Part::Fixed { at: 0 })
    }

    /// Reads the next byte. Returns whether the header is complete.
    pub(super) fn push(&mut self, byte: u8) -> Result<bool, String> {
        if let (Part::Extra { .. }, Some(extra)) = (self.part, self.extra.get_mut(self.extra_bytes)) {
            *extra = byte;
            self.extra_bytes += 1;
        }
        if let (Some(crc), false) = (&mut self.crc, matches!(self.part, Part::Crc { .. })) {
            let mut hasher = crc32fast::Hasher::new_with_initial(*crc);
            hasher.update(&[byte]);
            *crc = hasher.finalize();
        }
        self.part = match self.part {
            Part::Fixed { .. } if self.framing == Framing::Zlib => Part::Zlib { first: byte },
            Part::Zlib { first } if Framing::is_zlib_start(first, byte) => return Ok(self.next_part()),
            Part::Zlib { .. } => {
                return Err(
                    "the data after a zlib stream is not a zlib stream, or needs a dictionary".to_owned()
                );
            }
            Part::Fixed { at } => {
                self.check_fixed(at, byte)?;
                if at + 1 < FIXED_BYTES {
                    self.part = Part::Fixed { at: at + 1 };
                    return Ok(false);
                }
                return Ok(self.next_part());
            }
            Part::ExtraLength { low: None } => Part::ExtraLength { low: Some(byte) },
            Part::ExtraLength { low: Some(low) } => match usize::from(u16::from_le_bytes([low, byte])) {
                0 => return Ok(self.next_part()),
                left => Part::Extra { left },
            },
            Part::Extra { left: 1 } => return Ok(self.next_part()),
            Part::Extra { left } => Part::Extra { left: left - 1 },
            Part::Crc { low: None } => Part::Crc { low: Some(byte) },
            Part::Crc { low: Some(low) } => {
                let stated = u16::from_le_bytes([low, byte]);
                if self.crc.is_some_and(|crc| crc as u16 != stated) {
                    return Err("the checksum of the header of a gzip member does not match".to_owned());
                }
                return Ok(self.next_part());
            }
            Part::Name | Part::Comment if byte == 0 => return Ok(self.next_part()),
            part @ (Part::Name | Part::Comment) => part,
        };
        Ok(false)
    }

    fn check_fixed(&mut self, at: usize, byte: u8) -> Result<(), String> {
        match (at, byte) {
            (0, 0x1f) | (1, 0x8b) | (2, 8) => Ok(()),
            (0 | 1, _) => Err("the data after a gzip member is not a gzip member".to_owned()),
            (2, method) => Err(format!("the gzip member has the unknown compression method {method}")),
            (3, flags) if flags & RESERVED != 0 => Err("the gzip member has unknown flags".to_owned()),
            (3, flags) => {
                self.flags = flags;
                if flags & HAS_HEADER_CRC != 0 {
                    self.crc = Some(crc32fast::hash(&[0x1f, 0x8b, 8, flags]));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Starts the next part. Returns whether the header is complete.
    fn next_part(&mut self) -> bool {
        let mut take = |flag: u8| {
            let is_set = self.flags & flag != 0;
            self.flags &= !flag;
            is_set
        };
        let next = if take(HAS_EXTRA) {
            Some(Part::ExtraLength { low: None })
        } else if take(HAS_NAME) {
            Some(Part::Name)
        } else if take(HAS_COMMENT) {
            Some(Part::Comment)
        } else if take(HAS_HEADER_CRC) {
            Some(Part::Crc { low: None })
        } else {
            None
        };
        let is_complete = next.is_none();
        self.part = next.unwrap_or(Part::Fixed { at: 0 });
        is_complete
    }
}

/// The checksum and the size of the content of a member.
#[derive(Clone)]
pub(super) struct MemberContent {
    checksum: Checksum,
    bytes: u64,
}

#[derive(Clone)]
enum Checksum {
    Crc(crc32fast::Hasher),
    Adler(Adler32),
}

impl MemberContent {
    pub(super) fn new(framing: Framing) -> Self {
        let checksum = match framing {
            Framing::Gzip => Checksum::Crc(crc32fast::Hasher::new()),
            Framing::Zlib => Checksum::Adler(Adler32::new()),
        };
        Self { checksum, bytes: 0 }
    }

    pub(super) fn add(&mut self, content: &[u8]) {
        match &mut self.checksum {
            Checksum::Crc(crc) => crc.update(content),
            Checksum::Adler(adler) => adler.write(content),
        }
        self.bytes += content.len() as u64;
    }

    /// Compares the content with a trailer.
    pub(super) fn verify(self, trailer: [u8; MAX_TRAILER_BYTES]) -> Result<(), String> {
        let [c0, c1, c2, c3, s0, s1, s2, s3] = trailer;
        let (framing, is_sound) = match self.checksum {
            Checksum::Crc(crc) => (Framing::Gzip, crc.finalize() == u32::from_le_bytes([c0, c1, c2, c3])),
            Checksum::Adler(adler) => (Framing::Zlib, adler.finish() == u32::from_be_bytes([c0, c1, c2, c3])),
        };
        if !is_sound {
            return Err(format!("the checksum of a {} does not match its content", framing.member()));
        }
        if framing == Framing::Gzip && self.bytes as u32 != u32::from_le_bytes([s0, s1, s2, s3]) {
            return Err("the size of a gzip member does not match its content".to_owned());
        }
        Ok(())
    }
}
