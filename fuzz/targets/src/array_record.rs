//! Builds ArrayRecord files from small inputs. A whole file has at least 128 KiB, most of them padding, so changes of its bytes
//! rarely reach the footer. cargo-fuzz turns the hashes of chunks off; the tests of this crate do not.

/// Distance between two block headers. The last block of a file contains the postscript.
const BLOCK_BYTES: usize = 64 << 10;
const BLOCK_HEADER_BYTES: usize = 24;
const CHUNK_HEADER_BYTES: usize = 40;
const MAGIC: u64 = 0x7193_0e70_4fda_e05e;

/// Returns the file of an input. An input of whole blocks is a file. Otherwise, the input is the offset of the footer
/// (4 bytes, little-endian) and the part of the file before the padding, and the postscript is added.
pub(crate) fn file(input: &[u8]) -> Vec<u8> {
    let Some((start, body)) = input.split_first_chunk().filter(|_| !input.len().is_multiple_of(BLOCK_BYTES))
    else {
        return input.to_vec();
    };
    let mut file = body.to_vec();
    file.resize(body.len().next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES), 0);
    file.resize(file.len() + BLOCK_HEADER_BYTES, 0);
    let start = u32::from_le_bytes(*start) as usize % body.len().max(1);
    let record = [&[1_u8 << 3][..], &varint(start as u64), &[2 << 3], &varint(MAGIC)].concat();
    file.extend(simple_chunk(&[record]));
    file.resize(file.len().next_multiple_of(BLOCK_BYTES), 0);
    file
}

/// Returns the input of a file with one postscript block after the padding. `None` if the file has another form.
pub(crate) fn input(file: &[u8]) -> Option<Vec<u8>> {
    let (body, postscript) = file.split_at_checked(file.len().checked_sub(BLOCK_BYTES)?)?;
    // The chunk has the compression, the size of the sizes, and the sizes of the records before the records.
    let data = postscript.get(BLOCK_HEADER_BYTES + CHUNK_HEADER_BYTES..)?;
    let record = data.get(2 + usize::from(*data.get(1)?)..)?;
    let start = parse_varint(record.strip_prefix(&[1_u8 << 3])?)?;
    let end = body.iter().rposition(|byte| *byte != 0)? + 1;
    let start = u32::try_from(start).ok().filter(|start| (*start as usize) < end)?;
    Some([&start.to_le_bytes()[..], &body[..end]].concat())
}

/// Returns the input of a file with these records, each in its own chunk.
pub(crate) fn input_of_records(records: &[&[u8]]) -> Vec<u8> {
    let mut body = vec![0; BLOCK_HEADER_BYTES];
    let field = |number: u8, value: u64| [vec![number << 3], varint(value)].concat();
    let mut entries = Vec::new();
    for record in records {
        // The first chunk begins with the block header.
        let start = if entries.is_empty() { 0 } else { body.len() as u64 };
        entries.push([field(1, start), field(2, record.len() as u64), field(3, 1)].concat());
        body.extend(simple_chunk(&[record.to_vec()]));
    }
    let start = body.len() as u32;
    let count = records.len() as u64;
    let metadata = [field(1, 1), field(2, count), field(3, count)].concat();
    let metadata = [vec![1 << 3 | 2], varint(metadata.len() as u64), metadata].concat();
    body.extend(simple_chunk(&[vec![metadata], entries].concat()));
    [&start.to_le_bytes()[..], &body].concat()
}

/// Returns a chunk of records that are not compressed, without hashes.
fn simple_chunk(records: &[Vec<u8>]) -> Vec<u8> {
    let sizes: Vec<u8> = records.iter().flat_map(|record| varint(record.len() as u64)).collect();
    let values = records.concat();
    let data = [vec![0], varint(sizes.len() as u64), sizes, values.clone()].concat();
    let kind_and_records = u64::from(b'r') | (records.len() as u64) << 8;
    let header = [0, data.len() as u64, 0, kind_and_records, values.len() as u64];
    let header: Vec<u8> = header.into_iter().flat_map(u64::to_le_bytes).collect();
    [header, data].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn parse_varint(bytes: &[u8]) -> Option<u64> {
    let last = bytes.iter().take(9).position(|byte| byte & 0x80 == 0)?;
    Some(bytes[..=last].iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f)))
}
