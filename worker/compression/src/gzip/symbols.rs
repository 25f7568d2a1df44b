//! Decodes the symbols of a deflate block: literals, and matches, which copy earlier content.

use super::bits::DeflateBits;
use super::huffman::{
    DISTANCE_BITS, DISTANCE_ENTRIES, END_OF_BLOCK, EXCEPTIONAL, LITERAL, LITLEN_BITS, LITLEN_ENTRIES,
    SUBTABLE,
};
use super::tables::DeflateCodes;

/// Maximum length of a match.
const MAX_MATCH: usize = 258;
/// Space for one iteration of the fast loop: literals, a match, and the bytes that are copied beyond its end.
const FAST_CONTENT_BYTES: usize = MAX_MATCH + 3 + 32;
/// Input for one iteration of the fast loop, which refills three times.
const FAST_INPUT_BYTES: usize = 32;

/// The content and the write position.
pub(super) struct ContentOutput<'a> {
    pub(super) content: &'a mut [u8],
    pub(super) at: usize,
    /// Index of the first byte that a match may copy.
    pub(super) floor: usize,
}

/// A match of which a part does not fit into the content.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PendingMatch {
    pub(super) length: usize,
    pub(super) distance: usize,
}

/// Why the decoding of symbols stopped.
pub(super) enum SymbolEvent {
    EndOfBlock,
    NeedsInput,
    ContentFull,
}

/// Receives the index in the content and the length of each match.
pub(super) trait MatchObserver {
    fn on_match(&mut self, from: usize, length: usize);
}

/// Ignores matches.
pub(super) struct IgnoreMatches;

impl MatchObserver for IgnoreMatches {
    #[inline(always)]
    fn on_match(&mut self, _: usize, _: usize) {}
}

/// Decodes symbols until the block ends, or the input or the space for content is exhausted.
pub(super) fn decode(
    tables: &DeflateCodes,
    bits: &mut DeflateBits<'_>,
    output: &mut ContentOutput<'_>,
    pending: &mut PendingMatch,
    observer: &mut impl MatchObserver,
) -> Result<SymbolEvent, &'static str> {
    loop {
        let has_input = bits.input.len() - bits.at >= FAST_INPUT_BYTES;
        let has_space = output.content.len() - output.at >= FAST_CONTENT_BYTES;
        if has_input && has_space && pending.length == 0 {
            if decode_fast(tables, bits, output, observer)? {
                return Ok(SymbolEvent::EndOfBlock);
            }
            bits.return_bytes();
        }
        if let Some(event) = decode_one(tables, bits, output, pending, observer)? {
            return Ok(event);
        }
    }
}

#[inline(always)]
fn extra_value(buffer: u64, entry: u32) -> usize {
    let total = entry & 0x3f;
    (entry >> 16) as usize + ((buffer & ((1 << total) - 1)) >> (entry >> 8 & 0xf)) as usize
}

/// Decodes symbols while enough input and space remain. Returns whether the block has ended.
#[inline(always)]
fn decode_fast(
    tables: &DeflateCodes,
    bits: &mut DeflateBits<'_>,
    output: &mut ContentOutput<'_>,
    observer: &mut impl MatchObserver,
) -> Result<bool, &'static str> {
    const LITLEN_MASK: u64 = (1 << LITLEN_BITS) - 1;
    const DISTANCE_MASK: u64 = (1 << DISTANCE_BITS) - 1;
    let last_input = bits.input.len() - FAST_INPUT_BYTES;
    let last_content = output.content.len() - FAST_CONTENT_BYTES;
    let content = &mut *output.content;
    let mut at = output.at;
    // A local copy stays in registers.
    let mut reader = *bits;
    reader.refill_fast();
    let mut entry = tables.litlen[(reader.buffer & LITLEN_MASK) as usize];
    let result = loop {
        if entry & LITERAL != 0 {
            // The buffer contains at least 56 bits: enough for three literals and a length.
            reader.consume(entry & 0x3f);
            content[at] = (entry >> 16) as u8;
            at += 1;
            entry = tables.litlen[(reader.buffer & LITLEN_MASK) as usize];
            if entry & LITERAL != 0 {
                reader.consume(entry & 0x3f);
                content[at] = (entry >> 16) as u8;
                at += 1;
                entry = tables.litlen[(reader.buffer & LITLEN_MASK) as usize];
                if entry & LITERAL != 0 {
                    reader.consume(entry & 0x3f);
                    content[at] = (entry >> 16) as u8;
                    at += 1;
                    reader.refill_fast();
                    entry = tables.litlen[(reader.buffer & LITLEN_MASK) as usize];
                    if reader.at > last_input || at > last_content {
                        break Ok(false);
                    }
                    continue;
                }
            }
        }
        if entry & EXCEPTIONAL != 0 {
            if entry & SUBTABLE == SUBTABLE {
                reader.consume(LITLEN_BITS);
                let index =
                    (entry >> 16) as usize + (reader.buffer & ((1 << (entry >> 8 & 0xf)) - 1)) as usize;
                entry = tables.litlen[index & (LITLEN_ENTRIES - 1)];
            }
            if entry & LITERAL != 0 {
                reader.consume(entry & 0x3f);
                content[at] = (entry >> 16) as u8;
                at += 1;
                reader.refill_fast();
                entry = tables.litlen[(reader.buffer & LITLEN_MASK) as usize];
                if reader.at > last_input || at > last_content {
                    break Ok(false);
                }
                continue;
            }
            if entry & EXCEPTIONAL != 0 {
                reader.consume(entry & 0x3f);
                if entry & END_OF_BLOCK == END_OF_BLOCK {
                    break Ok(true);
                }
                break Err("a literal or length code is invalid");
            }
        }
        let length = extra_value(reader.buffer, entry);
        reader.consume(entry & 0x3f);
        reader.refill_fast();
        let mut entry_of_distance = tables.distance[(reader.buffer & DISTANCE_MASK) as usize];
        if entry_of_distance & EXCEPTIONAL != 0 {
            if entry_of_distance & SUBTABLE != SUBTABLE {
                break Err("a distance code is invalid");
            }
            reader.consume(DISTANCE_BITS);
            let index = (entry_of_distance >> 16) as usize
                + (reader.buffer & ((1 << (entry_of_distance >> 8 & 0xf)) - 1)) as usize;
            entry_of_distance = tables.distance[index & (DISTANCE_ENTRIES - 1)];
            if entry_of_distance & EXCEPTIONAL != 0 {
                break Err("a distance code is invalid");
            }
        }
        let distance = extra_value(reader.buffer, entry_of_distance);
        reader.consume(entry_of_distance & 0x3f);
        reader.refill_fast();
        // Load the next entry before the copy, so that both run in parallel.
        entry = tables.litlen[(reader.buffer & LITLEN_MASK) as usize];
        if at - output.floor < distance {
            break Err(TOO_FAR);
        }
        observer.on_match(at - distance, length);
        copy_fast(content, at, distance, length);
        at += length;
        if reader.at > last_input || at > last_content {
            break Ok(false);
        }
    };
    *bits = reader;
    output.at = at;
    result
}

const TOO_FAR: &str = "a match refers to data before the start";

/// Copies a match. May write up to 32 bytes beyond its end.
#[inline(always)]
fn copy_fast(content: &mut [u8], to: usize, distance: usize, length: usize) {
    let from = to - distance;
    if distance >= 16 {
        copy_block::<16>(content, from, to);
        let mut done = 16;
        while done < length {
            copy_block::<16>(content, from + done, to + done);
            done += 16;
        }
    } else if distance == 1 {
        let byte = content[from];
        content[to..to + length].fill(byte);
    } else if distance >= 8 {
        let mut done = 0;
        while done < length {
            copy_block::<8>(content, from + done, to + done);
            done += 8;
        }
    } else {
        for done in 0..length {
            content[to + done] = content[from + done];
        }
    }
}

#[inline(always)]
fn copy_block<const N: usize>(content: &mut [u8], from: usize, to: usize) {
    if let Some(block) = content.get(from..from + N) {
        let block: [u8; N] = block.try_into().expect("the slice has N bytes");
        if let Some(target) = content.get_mut(to..to + N) {
            target.copy_from_slice(&block);
        }
    }
}

/// Decodes one symbol, with all checks.
fn decode_one(
    tables: &DeflateCodes,
    bits: &mut DeflateBits<'_>,
    output: &mut ContentOutput<'_>,
    pending: &mut PendingMatch,
    observer: &mut impl MatchObserver,
) -> Result<Option<SymbolEvent>, &'static str> {
    if pending.length > 0 {
        copy_pending(output, pending);
    }
    if output.at == output.content.len() {
        return Ok(Some(SymbolEvent::ContentFull));
    }
    bits.refill();
    let start = *bits;
    let entry = look_up(&tables.litlen, LITLEN_BITS, bits);
    let is_complete = |bits: &DeflateBits<'_>| bits.count as i32 >= 0;
    if entry & LITERAL != 0 || entry & EXCEPTIONAL != 0 {
        bits.consume(entry & 0x3f);
        if !is_complete(bits) {
            *bits = start;
            return Ok(Some(SymbolEvent::NeedsInput));
        }
        if entry & LITERAL != 0 {
            output.content[output.at] = (entry >> 16) as u8;
            output.at += 1;
            return Ok(None);
        }
        if entry & END_OF_BLOCK == END_OF_BLOCK {
            return Ok(Some(SymbolEvent::EndOfBlock));
        }
        return invalid_code(bits, start, "a literal or length code is invalid");
    }
    let length = extra_value(bits.buffer, entry);
    bits.consume(entry & 0x3f);
    let entry = look_up(&tables.distance, DISTANCE_BITS, bits);
    if entry & EXCEPTIONAL != 0 {
        return invalid_code(bits, start, "a distance code is invalid");
    }
    let distance = extra_value(bits.buffer, entry);
    bits.consume(entry & 0x3f);
    if !is_complete(bits) {
        *bits = start;
        return Ok(Some(SymbolEvent::NeedsInput));
    }
    if output.at - output.floor < distance {
        return Err(TOO_FAR);
    }
    observer.on_match(output.at - distance, length);
    *pending = PendingMatch { length, distance };
    copy_pending(output, pending);
    Ok(None)
}

/// An invalid code at the end of the input may be an incomplete code.
fn invalid_code<'a>(
    bits: &mut DeflateBits<'a>,
    start: DeflateBits<'a>,
    reason: &'static str,
) -> Result<Option<SymbolEvent>, &'static str> {
    const MAX_SYMBOL_BITS: u32 = 48;
    if start.count < MAX_SYMBOL_BITS {
        *bits = start;
        return Ok(Some(SymbolEvent::NeedsInput));
    }
    Err(reason)
}

/// Looks up the next code. Consumes the bits of the main part if the code is in a subtable.
fn look_up(table: &[u32], main_bits: u32, bits: &mut DeflateBits<'_>) -> u32 {
    let entry = table[(bits.buffer & ((1 << main_bits) - 1)) as usize];
    if entry & SUBTABLE != SUBTABLE {
        return entry;
    }
    bits.consume(main_bits);
    table[(entry >> 16) as usize + (bits.buffer & ((1 << (entry >> 8 & 0xf)) - 1)) as usize]
}

/// Copies the part of a match that fits.
fn copy_pending(output: &mut ContentOutput<'_>, pending: &mut PendingMatch) {
    let count = pending.length.min(output.content.len() - output.at);
    for _ in 0..count {
        output.content[output.at] = output.content[output.at - pending.distance];
        output.at += 1;
    }
    pending.length -= count;
}
