//! Confluent's wire format: a zero byte, the id of a schema in 4 bytes, and the payload. Protobuf has the index of the message before
//! the payload.

/// Length of the prefix in bytes.
pub(super) const PREFIX_BYTES: usize = 5;
/// Maximum nesting depth of a Protobuf message in its file.
const MAX_DEPTH: u64 = 64;

/// Returns the id of the schema.
pub(super) fn schema_id(payload: &[u8]) -> Result<u32, String> {
    match payload {
        [0, a, b, c, d, ..] => Ok(u32::from_be_bytes([*a, *b, *c, *d])),
        _ => Err("the payload does not start with the id of a schema: check that the producer uses a schema registry".to_owned()),
    }
}

/// Splits the body of a Protobuf payload into the index of the message, outermost first, and the message.
pub(super) fn message_index(body: &[u8]) -> Result<(Vec<usize>, &[u8]), String> {
    let truncated = || "the payload ends within the index of the message".to_owned();
    let (count, mut rest) = zigzag(body).ok_or_else(truncated)?;
    if count == 0 {
        return Ok((vec![0], rest));
    }
    if count > MAX_DEPTH {
        return Err(format!("the index of the message has {count} numbers; the limit is {MAX_DEPTH}"));
    }
    let mut index = Vec::new();
    for _ in 0..count {
        let (number, after) = zigzag(rest).ok_or_else(truncated)?;
        index.push(usize::try_from(number).map_err(|_| truncated())?);
        rest = after;
    }
    Ok((index, rest))
}

/// Reads a zigzag-encoded number that is not negative.
fn zigzag(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (place, byte) in bytes.iter().enumerate().take(9) {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return (value & 1 == 0).then_some((value >> 1, &bytes[place + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read() {
        assert_eq!(schema_id(&[0, 0, 0, 1, 2]), Ok(258));
        for payload in [&[][..], &[0, 0, 0, 1], &[1, 0, 0, 0, 1], b"{\"a\": 1}"] {
            assert!(schema_id(payload).is_err());
        }
    }

    #[test]
    fn indexes_are_read() {
        assert_eq!(message_index(&[0, 7]), Ok((vec![0], &[7][..])));
        assert_eq!(message_index(&[4, 2, 0, 9]), Ok((vec![1, 0], &[9][..])));
        assert_eq!(message_index(&[2, 0x80, 1, 9]), Ok((vec![64], &[9][..])));
        for body in [&[][..], &[2], &[0x80], &[1], &[0xff; 20], &[0x80, 0x80, 1]] {
            assert!(message_index(body).is_err(), "{body:?}");
        }
    }
}
