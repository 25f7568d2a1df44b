//! Whether a reader's schema reads the fields of a writer's schema with the same values.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

/// Checks that the fields of requested columns have types that the reader's schema reads without changing a value. A column is a path of
/// field names in the reader's message, such as `user.name`, and fields are found in the writer's message by their numbers.
///
/// # Errors
/// Returns a sentence about the first field that has another type.
pub(super) fn check_columns<'a>(
    written: &MessageDescriptor,
    read: &MessageDescriptor,
    columns: impl Iterator<Item = &'a str>,
) -> Result<(), String> {
    for column in columns {
        if let Err((written, read)) = check_path(written, read, column) {
            return Err(format!(
                "column `{column}`: the payload has {written}, and the schema of the reader has {read}"
            ));
        }
    }
    Ok(())
}

/// Returns the declarations of the first field with another type.
fn check_path(
    written: &MessageDescriptor,
    read: &MessageDescriptor,
    path: &str,
) -> Result<(), (String, String)> {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let Some(read) = read.get_field_by_name(name) else { return Ok(()) };
    // A field that the writer does not know is not set.
    let Some(written) = written.get_field(read.number()) else { return Ok(()) };
    let is_readable = match (written.kind(), read.kind(), rest) {
        (Kind::Message(inner), Kind::Message(wanted), Some(rest))
            if !written.is_list() && !read.is_list() =>
        {
            return check_path(&inner, &wanted, rest);
        }
        (Kind::Message(_), Kind::Message(_), _) => written.is_map() == read.is_map(),
        (written_kind, read_kind, _) => {
            // A list has the single value as its item.
            (written.is_list() == read.is_list() || read.is_list()) && is_exact(&written_kind, &read_kind)
        }
    };
    if is_readable { Ok(()) } else { Err((declaration(&written), declaration(&read))) }
}

/// Whether each value of a type has the same bytes and the same value in another type.
fn is_exact(written: &Kind, read: &Kind) -> bool {
    match (written, read) {
        (Kind::Message(_), Kind::Message(_)) | (Kind::Enum(_), Kind::Enum(_)) => true,
        (Kind::Int32 | Kind::Enum(_), Kind::Int64) | (Kind::Enum(_), Kind::Int32) => true,
        (Kind::Uint32, Kind::Uint64 | Kind::Int64) | (Kind::Sint32, Kind::Sint64) => true,
        (Kind::Bool, Kind::Int32 | Kind::Int64 | Kind::Uint32 | Kind::Uint64) => true,
        (Kind::String, Kind::Bytes) => true,
        _ => written == read,
    }
}

fn declaration(field: &FieldDescriptor) -> String {
    let repeated = if field.is_list() { "repeated " } else { "" };
    format!("`{repeated}{:?} {} = {}`", field.kind(), field.name(), field.number())
}
