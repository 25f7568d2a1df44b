//! Windows of access points: the 32 KiB of content before a block, without the bytes that no later data refers to.

use std::cell::RefCell;

use zstd::bulk::Compressor;

use super::bits::PartialByte;
use super::inflate::{Inflate, InflateEvent};
use super::symbols::{ContentOutput, MatchObserver};

/// Number of bytes before a position to which deflate data can refer.
pub(super) const WINDOW_BYTES: usize = 32 << 10;
/// The first byte of a state with a compressed window.
const WINDOW_VERSION: u8 = 1;
/// Compression level of windows. Higher levels save little, and take a noticeable part of the time of indexing.
const LEVEL: i32 = 1;

thread_local! {
    /// A new compressor takes about as long as the compression of a window.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
}

/// Marks the bytes of a window that matches copy.
struct UsedBytes {
    is_used: Box<[bool; WINDOW_BYTES]>,
}

impl MatchObserver for UsedBytes {
    #[inline(always)]
    fn on_match(&mut self, from: usize, length: usize) {
        if from < WINDOW_BYTES {
            self.is_used[from..WINDOW_BYTES.min(from + length)].fill(true);
        }
    }
}

/// Returns the state of an access point with this window. `compressed` starts with the byte that contains bit `bit`, the
/// first bit of the next block.
pub(super) fn encode(history: &[u8], compressed: &[u8], bit: u32) -> Vec<u8> {
    let history = &history[history.len().saturating_sub(WINDOW_BYTES)..];
    let mut content = vec![0; 2 * WINDOW_BYTES + 1024];
    content[WINDOW_BYTES - history.len()..WINDOW_BYTES].copy_from_slice(history);
    let mut state = vec![WINDOW_VERSION];
    let floor = WINDOW_BYTES - history.len();
    if let Some(used) = used_bytes(&mut content, floor, compressed, bit) {
        let Some(first) = used.is_used.iter().position(|is_used| *is_used) else { return state };
        for (byte, is_used) in content.iter_mut().zip(used.is_used.iter()) {
            *byte = if *is_used { *byte } else { 0 };
        }
        state.extend(compress(&content[first..WINDOW_BYTES]));
        return state;
    }
    if !history.is_empty() {
        state.extend(compress(history));
    }
    state
}

fn compress(window: &[u8]) -> Vec<u8> {
    COMPRESSOR.with_borrow_mut(|compressor| {
        let new = || Compressor::new(LEVEL).expect("the level is valid");
        let compressed = compressor.get_or_insert_with(new).compress(window);
        compressed.expect("compressing a window in memory cannot fail")
    })
}

/// Finds the bytes of the window at the start of `content` that the following data refers to. Returns `None` if `compressed`
/// ends before that is known.
fn used_bytes(content: &mut [u8], floor: usize, compressed: &[u8], bit: u32) -> Option<UsedBytes> {
    let mut used = UsedBytes { is_used: Box::new([false; WINDOW_BYTES]) };
    let mut inflate = Inflate::new();
    let mut input = compressed;
    if bit > 0 {
        let (first, rest) = compressed.split_first()?;
        inflate.restart(PartialByte { bits: u64::from(*first >> bit), count: 8 - bit });
        input = rest;
    }
    let mut output = ContentOutput { content, at: WINDOW_BYTES, floor };
    loop {
        match inflate.decode(input, &mut output, &mut used) {
            // Later data refers only to content after the window.
            Ok(_) if output.at >= 2 * WINDOW_BYTES => return Some(used),
            // The next member has its own window. Damaged data is reported when it is read.
            Ok((_, InflateEvent::EndOfStream)) | Err(_) => return Some(used),
            Ok((consumed, InflateEvent::EndOfBlock)) => input = &input[consumed..],
            Ok((_, InflateEvent::NeedsInput | InflateEvent::ContentFull)) => return None,
        }
    }
}

/// Decodes the state of an access point. Returns the window.
pub(super) fn decode(state: &[u8]) -> Result<Vec<u8>, String> {
    match state.split_first() {
        Some((&WINDOW_VERSION, [])) => Ok(Vec::new()),
        Some((&WINDOW_VERSION, compressed)) => zstd::bulk::decompress(compressed, WINDOW_BYTES)
            .map_err(|error| format!("the window of an access point is damaged: {error}")),
        Some((version, _)) => Err(format!("the window of an access point has the unknown version {version}")),
        None => Err("the window of an access point is missing".to_owned()),
    }
}
