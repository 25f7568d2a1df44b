//! The Huffman codes of a deflate block.

use super::bits::{DeflateBits, OutOfInput};
use super::huffman::{
    self, DISTANCE_BITS, DISTANCE_ENTRIES, DISTANCE_SYMBOLS, DistanceTable, LITLEN_BITS, LITLEN_ENTRIES,
    LITLEN_SYMBOLS, LitlenTable,
};

/// The order of the lengths of the code of code lengths.
const CODE_LENGTH_ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
/// Maximum length of a code of a code length in bits.
const CODE_LENGTH_BITS: u32 = 7;

/// The decoding tables of a block.
pub(super) struct DeflateCodes {
    pub(super) litlen: LitlenTable,
    pub(super) distance: DistanceTable,
    is_fixed: bool,
}

/// Why the codes of a block cannot be read.
pub(super) enum CodeError {
    OutOfInput,
    Invalid(&'static str),
}

impl From<OutOfInput> for CodeError {
    fn from(OutOfInput: OutOfInput) -> Self {
        Self::OutOfInput
    }
}

impl DeflateCodes {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self { litlen: [0; LITLEN_ENTRIES], distance: [0; DISTANCE_ENTRIES], is_fixed: false })
    }

    /// Uses the fixed codes.
    pub(super) fn set_fixed(&mut self) {
        if self.is_fixed {
            return;
        }
        let mut lengths = [8_u8; LITLEN_SYMBOLS];
        lengths[144..256].fill(9);
        lengths[256..280].fill(7);
        huffman::build(&mut self.litlen, LITLEN_BITS, &lengths, huffman::litlen_entry)
            .expect("the fixed code of literals is complete");
        huffman::build(&mut self.distance, DISTANCE_BITS, &[5; DISTANCE_SYMBOLS], huffman::distance_entry)
            .expect("the fixed code of distances is complete");
        self.is_fixed = true;
    }

    /// Reads the codes of a dynamic block.
    pub(super) fn read(&mut self, bits: &mut DeflateBits<'_>) -> Result<(), CodeError> {
        let litlen_count = bits.read(5)? as usize + 257;
        let distance_count = bits.read(5)? as usize + 1;
        let order_count = bits.read(4)? as usize + 4;
        if litlen_count > 286 || distance_count > 30 {
            return Err(CodeError::Invalid("a block has too many symbols"));
        }
        let mut code_lengths = [0_u8; 19];
        for &symbol in &CODE_LENGTH_ORDER[..order_count] {
            code_lengths[symbol] = bits.read(3)? as u8;
        }
        let mut codes = [0_u32; 1 << CODE_LENGTH_BITS];
        huffman::build(&mut codes, CODE_LENGTH_BITS, &code_lengths, huffman::code_length_entry)
            .map_err(CodeError::Invalid)?;
        let mut lengths = [0_u8; LITLEN_SYMBOLS + DISTANCE_SYMBOLS];
        read_lengths(bits, &codes, &mut lengths[..litlen_count + distance_count])?;
        if lengths[256] == 0 {
            return Err(CodeError::Invalid("a block has no code for its end"));
        }
        self.is_fixed = false;
        let (litlen, rest) = lengths.split_at(litlen_count);
        huffman::build(&mut self.litlen, LITLEN_BITS, litlen, huffman::litlen_entry)
            .map_err(CodeError::Invalid)?;
        huffman::build(&mut self.distance, DISTANCE_BITS, &rest[..distance_count], huffman::distance_entry)
            .map_err(CodeError::Invalid)
    }
}

/// Reads the code lengths of both codes, which are compressed as one list.
fn read_lengths(bits: &mut DeflateBits<'_>, codes: &[u32; 128], lengths: &mut [u8]) -> Result<(), CodeError> {
    let mut at = 0;
    while at < lengths.len() {
        bits.refill();
        let entry = codes[(bits.buffer & 127) as usize];
        if entry & huffman::EXCEPTIONAL != 0 {
            let is_complete = bits.count >= CODE_LENGTH_BITS;
            return Err(if is_complete {
                CodeError::Invalid("a code length is invalid")
            } else {
                CodeError::OutOfInput
            });
        }
        let code_bits = entry & 0x3f;
        if code_bits > bits.count {
            return Err(CodeError::OutOfInput);
        }
        bits.consume(code_bits);
        let symbol = (entry >> 16) as u8;
        if symbol < 16 {
            lengths[at] = symbol;
            at += 1;
            continue;
        }
        let (value, count) = match symbol {
            16 if at == 0 => return Err(CodeError::Invalid("a code length repeats a missing length")),
            16 => (lengths[at - 1], 3 + bits.read(2)?),
            17 => (0, 3 + bits.read(3)?),
            _ => (0, 11 + bits.read(7)?),
        };
        let Some(repeated) = lengths.get_mut(at..at + count as usize) else {
            return Err(CodeError::Invalid("the code lengths of a block exceed its symbols"));
        };
        repeated.fill(value);
        at += count as usize;
    }
    Ok(())
}
