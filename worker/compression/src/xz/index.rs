//! Parses and verifies the index and the footer of an xz stream.

const DAMAGED: &str = "the index of the xz data is damaged: compress the file again";
const FOOTER_BYTES: usize = 12;

/// The number and the sizes of the blocks of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums {
    blocks: u64,
    unpadded_bytes: u64,
    content_bytes: u64,
}

impl Sums {
    pub(super) fn add(&mut self, unpadded_bytes: u64, content_bytes: u64) {
        self.blocks = self.blocks.wrapping_add(1);
        self.unpadded_bytes = self.unpadded_bytes.wrapping_add(unpadded_bytes);
        self.content_bytes = self.content_bytes.wrapping_add(content_bytes);
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        [self.blocks, self.unpadded_bytes, self.content_bytes]
            .iter()
            .flat_map(|sum| sum.to_le_bytes())
            .collect()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (sums, []) = bytes.as_chunks::<8>() else { return None };
        let [blocks, unpadded_bytes, content_bytes] = sums else { return None };
        let [blocks, unpadded_bytes, content_bytes] =
            [blocks, unpadded_bytes, content_bytes].map(|sum| u64::from_le_bytes(*sum));
        Some(Self { blocks, unpadded_bytes, content_bytes })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Indicator,
    BlockCount,
    UnpaddedBytes,
    ContentBytes,
    Padding,
    Checksum,
    Footer,
}

/// Parses an index and the footer after it, in pieces.
pub(super) struct IndexParser {
    part: Part,
    crc: crc32fast::Hasher,
    bytes: u64,
    /// The current number, and the number of its bits.
    number: (u64, u32),
    remaining_blocks: u64,
    unpadded_bytes: u64,
    sums: Sums,
}

impl Default for IndexParser {
    fn default() -> Self {
        Self {
            part: Part::Indicator,
            crc: crc32fast::Hasher::new(),
            bytes: 0,
            number: (0, 0),
            remaining_blocks: 0,
            unpadded_bytes: 0,
            sums: Sums::default(),
        }
    }
}

impl IndexParser {
    /// Parses the next piece. Returns the number of parsed bytes, and whether the stream has ended. `sums` are the blocks that were
    /// decoded, if all were.
    pub(super) fn parse(
        &mut self,
        input: &[u8],
        check: u8,
        sums: Option<&Sums>,
    ) -> Result<(usize, bool), String> {
        let damaged = || DAMAGED.to_owned();
        let mut at = 0;
        loop {
            match self.part {
                Part::Checksum => {
                    let Some((crc, _)) = input[at..].split_first_chunk::<4>() else { return Ok((at, false)) };
                    let is_complete = sums.is_none_or(|sums| *sums == self.sums);
                    if u32::from_le_bytes(*crc) != self.crc.clone().finalize() || !is_complete {
                        return Err(damaged());
                    }
                    (at, self.part) = (at + 4, Part::Footer);
                }
                Part::Footer => {
                    let Some((footer, _)) = input[at..].split_first_chunk::<FOOTER_BYTES>() else {
                        return Ok((at, false));
                    };
                    let index_bytes = self.bytes + 4;
                    let backward = u32::try_from(index_bytes / 4 - 1).map_err(|_| damaged())?;
                    let (fields, magic) = (&footer[4..10], &footer[10..]);
                    let is_sound = footer[..4] == crc32fast::hash(fields).to_le_bytes()
                        && fields[..4] == backward.to_le_bytes()
                        && fields[4..] == [0, check]
                        && magic == b"YZ";
                    return if is_sound { Ok((at + FOOTER_BYTES, true)) } else { Err(damaged()) };
                }
                Part::Padding if self.bytes.is_multiple_of(4) => self.part = Part::Checksum,
                _ => {
                    let Some(&byte) = input.get(at) else { return Ok((at, false)) };
                    at += 1;
                    self.bytes += 1;
                    self.crc.update(&[byte]);
                    self.add(byte).ok_or_else(damaged)?;
                }
            }
        }
    }

    /// Processes a byte of a part before the checksum.
    fn add(&mut self, byte: u8) -> Option<()> {
        match self.part {
            Part::Indicator => self.part = Part::BlockCount,
            Part::Padding if byte != 0 => return None,
            Part::Padding => {}
            _ => {
                if let Some(number) = self.add_digit(byte)? {
                    self.add_number(number)?;
                }
            }
        }
        Some(())
    }

    /// Adds 7 bits to the current number. Returns the number if it is complete.
    fn add_digit(&mut self, byte: u8) -> Option<Option<u64>> {
        let (value, bits) = &mut self.number;
        if *bits >= 63 || byte == 0 && *bits > 0 {
            return None;
        }
        *value |= u64::from(byte & 0x7f) << *bits;
        *bits += 7;
        let is_complete = byte & 0x80 == 0;
        Some(is_complete.then(|| std::mem::take(&mut self.number).0))
    }

    fn add_number(&mut self, number: u64) -> Option<()> {
        match self.part {
            Part::BlockCount => self.remaining_blocks = number,
            Part::UnpaddedBytes => {
                self.unpadded_bytes = number;
                self.part = Part::ContentBytes;
                return Some(());
            }
            _ => {
                self.sums.add(self.unpadded_bytes, number);
                self.remaining_blocks -= 1;
            }
        }
        self.part = if self.remaining_blocks == 0 { Part::Padding } else { Part::UnpaddedBytes };
        Some(())
    }
}
