//! CSV files of numbers, also compressed with gzip, as arrays of float32.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use feedline_data::schema::ScalarType;

use super::super::run::BuildSettings;
use super::super::table::open_text;
use super::super::values::shown;
use crate::error::GraphError;
use crate::hashed_file::ArrayWriter;

/// Maximum length of a line.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Lines that begin with this character are comments.
const COMMENT: char = '#';

/// Writes the numbers of a CSV file to the array at `out`. The first line may contain names.
///
/// # Errors
/// Returns an error that names the row if a field is not a number, or the rows have different lengths.
pub(super) fn write_matrix(path: &Path, out: &Path, settings: &BuildSettings) -> Result<(), GraphError> {
    let invalid = |row: u64, reason: String| {
        GraphError::file(path.display().to_string(), format!("row {row}: {reason}"))
    };
    let mut reader = BufReader::with_capacity(1 << 20, open_text(path)?);
    let (mut line, mut bytes, mut row) = (String::new(), Vec::new(), 0_u64);
    let mut writer: Option<(ArrayWriter, usize)> = None;
    let mut is_first = true;
    while read_line(&mut reader, &mut line).map_err(|error| GraphError::io("read", path, &error))? {
        settings.check_stop()?;
        let text = line.trim();
        if text.is_empty() || text.starts_with(COMMENT) {
            continue;
        }
        let is_header = is_first && fields(text).next().is_some_and(|field| field.parse::<f32>().is_err());
        is_first = false;
        if is_header {
            continue;
        }
        bytes.clear();
        for field in fields(text) {
            let number: f32 =
                field.parse().map_err(|_| invalid(row, format!("`{}` is not a number", shown(field))))?;
            bytes.extend(number.to_le_bytes());
        }
        let width = bytes.len() / size_of::<f32>();
        let (writer, expected) = match &mut writer {
            Some(writer) => writer,
            None => writer.insert((create(out, width)?, width)),
        };
        if width != *expected {
            return Err(invalid(row, format!("the row has {width} numbers, but other rows have {expected}")));
        }
        writer.write(&bytes)?;
        row += 1;
    }
    match writer {
        Some((writer, _)) => writer.finish().map(drop),
        None => Err(GraphError::file(path.display().to_string(), "the file has no rows: expected numbers")),
    }
}

fn create(out: &Path, width: usize) -> Result<ArrayWriter, GraphError> {
    let folder = out.parent().unwrap_or(Path::new(""));
    let name = out.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let width = u32::try_from(width).unwrap_or(u32::MAX);
    ArrayWriter::create(folder, name.to_owned(), ScalarType::Float32, &[width])
}

/// Replaces the contents of `line` by the next line. Returns false at the end of the file.
fn read_line(reader: &mut impl BufRead, line: &mut String) -> std::io::Result<bool> {
    line.clear();
    let length = reader.take(MAX_LINE_BYTES).read_line(line)?;
    if length as u64 == MAX_LINE_BYTES {
        return Err(std::io::Error::other("a line is too long"));
    }
    Ok(length > 0)
}

/// Returns the fields of a line, which commas, semicolons, tabs or spaces separate.
fn fields(line: &str) -> impl Iterator<Item = &str> {
    let delimiter = ['\t', ',', ';'].into_iter().find(|delimiter| line.contains(*delimiter)).unwrap_or(' ');
    line.split(delimiter).map(str::trim).filter(move |field| delimiter != ' ' || !field.is_empty())
}
