//! Whether a reader's schema reads the fields of a writer's schema with the same values.

use std::sync::Arc;

use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

/// The field of each column in the writer's message. `None` if the writer or the reader does not have it.
pub(super) type WrittenFields = Arc<[Option<FieldDescriptor>]>;

/// Finds the fields of columns in the writer's message, by their numbers, and checks that the reader's schema reads them without
/// changing a value. A column is a path of field names in the reader's message, such as `user.name`.
///
/// # Errors
/// Returns a sentence about the first field whose values the reader's schema would change.
pub(super) fn written_fields<'a>(
    written: &MessageDescriptor,
    read: &MessageDescriptor,
    columns: impl Iterator<Item = &'a str>,
) -> Result<WrittenFields, String> {
    let find = |column| {
        written_field(written, read, column).map_err(|(written, read)| {
            format!("column `{column}`: the payload has {written}, and the schema of the reader has {read}")
        })
    };
    columns.map(find).collect()
}

/// Returns the declarations of the first field that does not match.
fn written_field(
    written: &MessageDescriptor,
    read: &MessageDescriptor,
    path: &str,
) -> Result<Option<FieldDescriptor>, (String, String)> {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let Some(read) = read.get_field_by_name(name) else { return Ok(None) };
    let Some(written) = written.get_field(read.number()) else { return Ok(None) };
    let is_single = |field: &FieldDescriptor| !field.is_list() && !field.is_map();
    let is_readable = match (written.kind(), read.kind(), rest) {
        (Kind::Message(inner), Kind::Message(wanted), Some(rest))
            if is_single(&written) && is_single(&read) =>
        {
            return written_field(&inner, &wanted, rest);
        }
        (_, Kind::Message(_), Some(_)) if is_single(&read) => false,
        // The reader's schema does not have the column.
        (_, Kind::Message(_), _) | (_, _, Some(_)) => return Ok(None),
        (written_kind, read_kind, None) => {
            // A repeated field reads a single value as a list with one item, if a zero is written.
            let has_shape =
                written.is_list() == read.is_list() || read.is_list() && written.supports_presence();
            has_shape && is_exact(&written_kind, &read_kind)
        }
    };
    if is_readable { Ok(Some(written)) } else { Err((declaration(&written), declaration(&read))) }
}

/// Whether each value of a type has the same bytes and the same value in another type.
fn is_exact(written: &Kind, read: &Kind) -> bool {
    match (written, read) {
        (Kind::Enum(written), Kind::Enum(read)) => has_same_names(written, read),
        (Kind::Int32 | Kind::Enum(_), Kind::Int64) | (Kind::Enum(_), Kind::Int32) => true,
        (Kind::Uint32, Kind::Uint64 | Kind::Int64) | (Kind::Sint32, Kind::Sint64) => true,
        (Kind::Bool, Kind::Int32 | Kind::Int64 | Kind::Uint32 | Kind::Uint64) => true,
        (Kind::String, Kind::Bytes) => true,
        _ => written == read,
    }
}

/// Whether no name of one enum belongs to another number in the other enum. A value may have been renamed.
fn has_same_names(written: &EnumDescriptor, read: &EnumDescriptor) -> bool {
    written.values().all(|value| {
        read.get_value_by_name(value.name()).is_none_or(|named| named.number() == value.number())
    })
}

fn declaration(field: &FieldDescriptor) -> String {
    let repeated = if field.is_list() { "repeated " } else { "" };
    format!("`{repeated}{:?} {} = {}`", field.kind(), field.name(), field.number())
}
