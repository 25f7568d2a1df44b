//! Mirrors lines of RGB8 pixels. This module is in this crate because it uses SIMD intrinsics, which need `unsafe`.

/// Pixels that one block operation reverses.
const BLOCK_PIXELS: usize = 16;
const BLOCK_BYTES: usize = BLOCK_PIXELS * 3;

/// Reverses a line of RGB8 pixels. Bytes after the last whole pixel do not change.
pub fn mirror_rgb(line: &mut [u8]) {
    let pixels = line.len() / 3;
    // Blocks from both ends are exchanged. The remaining pixels between them are less than two blocks.
    let blocks = pixels / (2 * BLOCK_PIXELS);
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if blocks > 0 && std::arch::is_x86_feature_detected!("ssse3") {
        let (front, back) = line[..pixels * 3].split_at_mut(pixels / 2 * 3);
        // SAFETY: the check above ensures that the processor supports SSSE3.
        unsafe { swap_blocks(front, back, blocks) };
        done = blocks * BLOCK_BYTES;
    }
    line[done..pixels * 3 - done].as_chunks_mut::<3>().0.reverse();
}

/// Swaps the first blocks of `front` with the last blocks of `back`, and reverses their pixels.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "ssse3")]
fn swap_blocks(front: &mut [u8], back: &mut [u8], blocks: usize) {
    let front = front.as_chunks_mut::<BLOCK_BYTES>().0.iter_mut();
    let back = back.as_rchunks_mut::<BLOCK_BYTES>().1.iter_mut().rev();
    for (left, right) in front.zip(back).take(blocks) {
        (*left, *right) = (reversed(right), reversed(left));
    }
}

/// Returns the pixels of a block in reverse order.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "ssse3")]
fn reversed(block: &[u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_or_si128, _mm_shuffle_epi8, _mm_storeu_si128};

    /// Shuffle masks for each 16-byte part of the result and each 16-byte part of the block. A mask contains indexes of
    /// source bytes, or numbers with the highest bit set, which yield zero.
    const SHUFFLE_MASKS: [[[u8; 16]; 3]; 3] = {
        let mut moves = [[[0x80; 16]; 3]; 3];
        let mut to = 0;
        while to < BLOCK_BYTES {
            let from = (BLOCK_PIXELS - 1 - to / 3) * 3 + to % 3;
            moves[to / 16][from / 16][to % 16] = (from % 16) as u8;
            to += 1;
        }
        moves
    };
    // SAFETY: the loads read 16 bytes from arrays of 16 bytes, and at offsets 0, 16 and 32 of an array of 48 bytes; the
    // instruction requires no alignment.
    let load = |bytes: *const u8| unsafe { _mm_loadu_si128(bytes.cast::<__m128i>()) };
    let parts = [0, 16, 32].map(|at| load(block[at..at + 16].as_ptr()));
    let mut out = [0; BLOCK_BYTES];
    for (moves, out) in SHUFFLE_MASKS.iter().zip(out.as_chunks_mut::<16>().0) {
        let [a, b, c] = [0, 1, 2].map(|part| _mm_shuffle_epi8(parts[part], load(moves[part].as_ptr())));
        // SAFETY: the store writes 16 bytes to an array of 16 bytes.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast::<__m128i>(), _mm_or_si128(_mm_or_si128(a, b), c)) };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::mirror_rgb;

    #[test]
    fn lines_of_every_length_are_reversed() {
        for length in 0..700 {
            let line: Vec<u8> = (0..length).map(|byte| (byte * 7 % 251) as u8).collect();
            let mut expected = line.clone();
            expected.as_chunks_mut::<3>().0.reverse();
            let mut mirrored = line;
            mirror_rgb(&mut mirrored);
            assert_eq!(mirrored, expected, "{length} bytes");
        }
    }
}
