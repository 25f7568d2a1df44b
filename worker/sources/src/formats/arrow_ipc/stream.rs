//! The Arrow stream format: messages one after another, without a footer. The library `datasets` writes it. The index contains
//! the location of each record batch, so that workers do not scan a shard again.
//!
//! A message consists of a continuation marker, the length of its header, the header with padding, and the body. A length of 0
//! ends the stream.

use arrow::datatypes::DataType;
use arrow::ipc::{Message, MessageHeader, root_as_message};
use bytes::Bytes;
use feedline_data::manifest::{Block, Defect, ShardIndex};
use feedline_data::schema::Schema;

use super::compression::is_compressed;
use super::footer::{
    ArrowFooter, MessageLocation, big_endian, check_dictionaries, message_ratio, message_rows, without_panic,
};
use crate::error::SourceError;
use crate::limits::{MAX_BLOCKS, MAX_FOOTER_BYTES};
use crate::object::Object;
use crate::reader::BlockRead;
use crate::window::ReadWindow;

/// Size of the continuation marker and of the length of a message's header.
const PREFIX_BYTES: u64 = 8;
const CONTINUATION: [u8; 4] = [0xff; 4];

const ANOTHER_STREAM: &str =
    "the file continues after the end of the stream: write each stream to its own file";

/// A message of a stream.
struct StreamMessage {
    location: MessageLocation,
    kind: MessageKind,
}

enum MessageKind {
    /// A record batch, with its number of rows and whether it is compressed.
    Batch(u32, bool),
    Dictionary,
    Schema,
}

/// The next message of a stream, or why it cannot be read.
enum Next {
    Message(StreamMessage),
    End,
    Defect(Defect),
}

/// Reads the schema, and the dictionaries if a column needs them.
pub(super) async fn read_header(object: &Object) -> Result<ArrowFooter, SourceError> {
    let corrupt = |offset: u64, reason: String| SourceError::corrupt(object.shard(), offset, reason);
    let mut window = ReadWindow::new(object);
    let first = match next(&mut window, object.size_bytes(), 0).await? {
        Next::Message(StreamMessage { location, kind: MessageKind::Schema }) => location,
        Next::Defect(defect) => return Err(corrupt(defect.offset, defect.reason)),
        _ => {
            return Err(corrupt(
                0,
                "the stream does not begin with a schema: write the file again".to_owned(),
            ));
        }
    };
    let header = window.read_from(PREFIX_BYTES, first.metadata_bytes - PREFIX_BYTES).await?;
    let header = &header[..(first.metadata_bytes - PREFIX_BYTES) as usize];
    let footer = without_panic(|| {
        let message = root_as_message(header).map_err(|error| error.to_string())?;
        let schema = message.header_as_schema().ok_or("the first message is not a schema")?;
        ArrowFooter::new(schema, message.version())
    });
    let mut footer = footer.map_err(|reason| corrupt(0, reason))?.ok_or_else(|| big_endian(object))?;
    footer.is_stream = true;
    if footer.schema.fields().iter().any(|field| has_dictionary(field.data_type())) {
        let mut dictionaries = Vec::new();
        let mut offset = first.range().end;
        while let Next::Message(message) = next(&mut window, object.size_bytes(), offset).await? {
            offset = message.location.range().end;
            match message.kind {
                MessageKind::Batch(..) => {}
                MessageKind::Dictionary => {
                    dictionaries.push(message.location);
                    check_dictionaries(&dictionaries).map_err(|reason| corrupt(offset, reason))?;
                }
                // Another stream follows.
                MessageKind::Schema => break,
            }
        }
        footer.read_dictionaries(object, dictionaries).await?;
    }
    Ok(footer)
}

fn has_dictionary(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(..) => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _)
        | DataType::RunEndEncoded(_, item) => has_dictionary(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_dictionary(field.data_type())),
        _ => false,
    }
}

/// Finds the record batches of a stream. A truncated message and a second stream are defects.
pub(super) async fn index(object: &Object, schema: Schema) -> Result<ShardIndex, SourceError> {
    let (mut blocks, mut defects) = (Vec::new(), Vec::new());
    let mut window = ReadWindow::new(object);
    let (mut offset, mut ratio) = (0, None);
    loop {
        let message = match next(&mut window, object.size_bytes(), offset).await? {
            Next::Message(message) => message,
            Next::End => break,
            Next::Defect(defect) => {
                defects.push(defect);
                break;
            }
        };
        let range = message.location.range();
        offset = range.end;
        let (rows, is_compressed) = match message.kind {
            MessageKind::Batch(rows, is_compressed) => (rows, is_compressed),
            MessageKind::Schema if range.start > 0 => {
                defects.push(Defect { offset: range.start, reason: ANOTHER_STREAM.to_owned() });
                break;
            }
            MessageKind::Schema | MessageKind::Dictionary => continue,
        };
        if blocks.len() == MAX_BLOCKS {
            let reason =
                format!("the stream has more than {MAX_BLOCKS} record batches: write larger record batches");
            return Err(SourceError::corrupt(object.shard(), offset, reason));
        }
        // An empty record batch is not a block.
        if rows > 0 {
            let stored_bytes = range.end - range.start;
            let group = u32::try_from(stored_bytes).map_err(|_| {
                let reason = "a record batch is larger than 4 GiB: write smaller record batches";
                SourceError::corrupt(object.shard(), range.start, reason)
            })?;
            let ratio = match ratio {
                _ if !is_compressed => 1.0,
                Some(ratio) => ratio,
                None => *ratio.insert(message_ratio(object, &message.location).await?),
            };
            let bytes = (stored_bytes as f64 * ratio) as u64;
            blocks.push(Block { rows, offset: range.start, bytes, group, row_bytes: Vec::new() });
        }
    }
    let schema = (!blocks.is_empty()).then_some(schema);
    Ok(ShardIndex { blocks, schema, defects, ..ShardIndex::default() })
}

/// Reads the header of the message at this offset.
async fn next(window: &mut ReadWindow<'_>, size: u64, offset: u64) -> Result<Next, SourceError> {
    let defect = |reason: &str| Ok(Next::Defect(Defect { offset, reason: reason.to_owned() }));
    let truncated = "the stream is truncated: write the file again";
    if offset == size {
        return Ok(Next::End);
    }
    let prefix = window.read_from(offset, PREFIX_BYTES).await?;
    let Some((&[a, b, c, d, e, f, g, h], _)) = prefix.split_first_chunk() else { return defect(truncated) };
    if [a, b, c, d] != CONTINUATION {
        return defect(
            "the stream has no message at this offset: write the file again with a current version of Arrow",
        );
    }
    let header_bytes = u64::from(u32::from_le_bytes([e, f, g, h]));
    if header_bytes == 0 {
        return if offset + PREFIX_BYTES < size { defect(ANOTHER_STREAM) } else { Ok(Next::End) };
    }
    let metadata_bytes = PREFIX_BYTES + header_bytes;
    if header_bytes > MAX_FOOTER_BYTES {
        return defect("the header of a message exceeds the size limit: the file is corrupted");
    }
    if offset + metadata_bytes > size {
        return defect(truncated);
    }
    let header = window.read_from(offset, metadata_bytes).await?;
    let header = &header[..metadata_bytes as usize];
    let parsed = without_panic(|| {
        let message = root_as_message(&header[PREFIX_BYTES as usize..])
            .map_err(|error| format!("the header of a message is corrupted: {error}"))?;
        let body_bytes = u64::try_from(message.bodyLength()).ok().filter(|&bytes| bytes <= size);
        let body_bytes = body_bytes.ok_or("the length of a message is invalid: the file is corrupted")?;
        Ok((body_bytes, message_kind(&message, header)?))
    });
    let (body_bytes, kind) = match parsed {
        Ok(parsed) => parsed,
        Err(reason) => return defect(&reason),
    };
    let location = MessageLocation { offset, metadata_bytes, body_bytes };
    if location.range().end > size {
        return defect(truncated);
    }
    Ok(Next::Message(StreamMessage { location, kind }))
}

fn message_kind(message: &Message<'_>, header: &[u8]) -> Result<MessageKind, String> {
    match message.header_type() {
        MessageHeader::RecordBatch => Ok(MessageKind::Batch(message_rows(header)?, is_compressed(header))),
        MessageHeader::DictionaryBatch => Ok(MessageKind::Dictionary),
        MessageHeader::Schema => Ok(MessageKind::Schema),
        _ => Err("the stream contains a message that is not a record batch: write the file again".to_owned()),
    }
}

/// Reads the record batch of a block. The offset of the block is that of the message, and its group is the size of the message.
pub(super) async fn read_batch(
    object: &Object,
    read: &BlockRead<'_>,
) -> Result<(MessageLocation, Bytes), SourceError> {
    let (offset, bytes) = (read.block.offset, u64::from(read.block.group));
    let message = object.read(offset..offset.saturating_add(bytes)).await?;
    let metadata_bytes = match message.split_first_chunk() {
        Some((&[a, b, c, d, e, f, g, h], _)) if [a, b, c, d] == CONTINUATION => {
            PREFIX_BYTES + u64::from(u32::from_le_bytes([e, f, g, h]))
        }
        _ => 0,
    };
    if metadata_bytes <= PREFIX_BYTES || metadata_bytes > bytes {
        let reason =
            "the index contains a record batch that the stream does not have: run `feedline index --rebuild`";
        return Err(SourceError::corrupt(read.shard, offset, reason));
    }
    let location = MessageLocation { offset, metadata_bytes, body_bytes: bytes - metadata_bytes };
    Ok((location, message))
}
