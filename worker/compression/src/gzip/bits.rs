//! Reads a deflate stream bit by bit. The lowest bit of a byte is first.

/// Reads bits from one piece of input.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeflateBits<'a> {
    pub(super) input: &'a [u8],
    /// Index of the next byte of `input` that is not in `buffer`.
    pub(super) at: usize,
    /// The next bits, the first bit lowest. Bits above `count` are undefined after [`DeflateBits::refill_fast`].
    pub(super) buffer: u64,
    pub(super) count: u32,
}

/// The bits of a partially read byte, between two pieces of input.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PartialByte {
    pub(super) bits: u64,
    pub(super) count: u32,
}

/// The input ends before the end of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutOfInput;

impl<'a> DeflateBits<'a> {
    pub(super) fn new(input: &'a [u8], partial: PartialByte) -> Self {
        Self { input, at: 0, buffer: partial.bits, count: partial.count }
    }

    /// Ends the reading of this input. Returns the number of bytes of which at least one bit was read, and the rest of the
    /// last of them.
    pub(super) fn finish(mut self) -> (usize, PartialByte) {
        self.return_bytes();
        (self.at, PartialByte { bits: self.buffer, count: self.count })
    }

    /// Returns whole unread bytes from the buffer to the input.
    pub(super) fn return_bytes(&mut self) {
        self.at -= (self.count / 8) as usize;
        self.count %= 8;
        self.buffer &= (1 << self.count) - 1;
    }

    /// Fills the buffer with at least 56 bits. At least 8 bytes of input must follow.
    #[inline(always)]
    pub(super) fn refill_fast(&mut self) {
        if let Some(bytes) = self.input.get(self.at..self.at + 8) {
            let next = u64::from_le_bytes(bytes.try_into().expect("the slice has 8 bytes"));
            self.buffer |= next << self.count;
            self.at += ((63 - self.count) / 8) as usize;
            self.count |= 56;
        }
    }

    /// Fills the buffer with at least 56 bits, or with all remaining input.
    pub(super) fn refill(&mut self) {
        if self.count < 64 {
            self.buffer &= (1 << self.count) - 1;
        }
        while self.count <= 56 && self.at < self.input.len() {
            self.buffer |= u64::from(self.input[self.at]) << self.count;
            self.at += 1;
            self.count += 8;
        }
    }

    /// Removes bits from the buffer, which must contain them.
    #[inline(always)]
    pub(super) fn consume(&mut self, bits: u32) {
        self.buffer >>= bits;
        self.count = self.count.wrapping_sub(bits);
    }

    /// Reads up to 32 bits.
    pub(super) fn read(&mut self, bits: u32) -> Result<u32, OutOfInput> {
        if self.count < bits {
            self.refill();
            if self.count < bits {
                return Err(OutOfInput);
            }
        }
        let value = self.buffer & ((1 << bits) - 1);
        self.consume(bits);
        Ok(value as u32)
    }
}
