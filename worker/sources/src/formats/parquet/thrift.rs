//! Checks the counts and sizes in Parquet footers and page headers before the Parquet crate allocates memory for them.
//! Footers and page headers use the Thrift compact protocol.

// Type codes of the Thrift compact protocol.
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;
const I32: u8 = 5;
/// Maximum nesting depth of structs and lists in a valid file.
const MAX_DEPTH: usize = 32;
/// Maximum nesting depth of the groups of a schema, which the Parquet crate reads recursively.
const MAX_SCHEMA_DEPTH: usize = 64;
/// Maximum number of columns and groups of a schema.
const MAX_SCHEMA_ELEMENTS: usize = 131_072;
/// Maximum number of row groups. The index of a row group is a 16-bit number.
const MAX_ROW_GROUPS: usize = i16::MAX as usize;

/// Checks the counts and the nesting depth of a footer (`FileMetaData`).
pub(super) fn check_footer(footer: &[u8]) -> Result<(), String> {
    let mut input = CompactReader(footer);
    let mut id = 0;
    while let Some((next, kind)) = input.field(id)? {
        id = next;
        match (id, kind) {
            (2, LIST) => input.check_schema()?,
            (4, LIST) => {
                let (kind, count) = input.list()?;
                if count > MAX_ROW_GROUPS {
                    return Err(format!(
                        "the file has {count} row groups, more than the limit of {MAX_ROW_GROUPS}: write larger row groups"
                    ));
                }
                (0..count).try_for_each(|_| input.skip(kind, MAX_DEPTH))?;
            }
            _ => input.skip(kind, MAX_DEPTH)?,
        }
    }
    Ok(())
}

/// Whether a footer states that columns of the file are encrypted.
pub(super) fn is_encrypted(footer: &[u8]) -> bool {
    let mut input = CompactReader(footer);
    let mut id = 0;
    while let Ok(Some((next, kind))) = input.field(id) {
        id = next;
        // `encryption_algorithm`.
        if id == 8 {
            return true;
        }
        if input.skip(kind, MAX_DEPTH).is_err() {
            break;
        }
    }
    false
}

/// Returns the total decompressed size of contiguous pages, according to their headers. Stops at bytes that are not a page, because
/// the Parquet crate reports the error.
pub(super) fn decompressed_bytes(pages: &[u8]) -> u64 {
    let mut input = CompactReader(pages);
    let mut all = 0_u64;
    while !input.0.is_empty() {
        let Ok(page) = input.page() else { break };
        all = all.saturating_add(page.decompressed_bytes);
        if input.take(page.stored_bytes).is_err() {
            break;
        }
    }
    all
}

/// The header of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub(super) kind: PageKind,
    pub(super) decompressed_bytes: u64,
    /// Without the header.
    pub(super) stored_bytes: u64,
}

/// The kind of a page, and the number of its rows or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageKind {
    DataV1 { values: u64 },
    DataV2 { rows: u64 },
    Dictionary,
    Other,
}

/// Reads the header of the page at the start of these bytes. Returns the header and its length. `None` if the header is invalid or
/// longer than the bytes.
pub(super) fn page_header(bytes: &[u8]) -> Option<(PageHeader, u64)> {
    let mut input = CompactReader(bytes);
    let header = input.page().ok()?;
    Some((header, (bytes.len() - input.0.len()) as u64))
}

/// Reads a number that is stored in 7 bits per byte, from the start of these bytes. `None` if the number is truncated or longer than
/// 10 bytes.
pub(super) fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for place in 0..10 {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Reads a message in the Thrift compact protocol. The field contains the unread bytes.
struct CompactReader<'a>(&'a [u8]);

impl<'a> CompactReader<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], String> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(corrupted_error)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    fn varint(&mut self) -> Result<u64, String> {
        read_varint(&mut self.0).ok_or_else(corrupted_error)
    }

    fn signed(&mut self) -> Result<i64, String> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads the id and the type of the next field. `None` at the end of the struct.
    fn field(&mut self, last: i64) -> Result<Option<(i64, u8)>, String> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        let id = match head >> 4 {
            0 => self.signed()?,
            step => last.saturating_add(i64::from(step)),
        };
        Ok(Some((id, head & 0x0f)))
    }

    /// Reads the type and the number of the items of a list. Fails if the rest of the message has fewer bytes than the list
    /// has items, because an item is at least one byte long.
    fn list(&mut self) -> Result<(u8, usize), String> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            few => u64::from(few),
        };
        match usize::try_from(count) {
            Ok(count) if count <= self.0.len() => Ok((head & 0x0f, count)),
            _ => Err(corrupted_error()),
        }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Result<(), String> {
        let Some(inner) = depth.checked_sub(1) else { return Err(corrupted_error()) };
        match kind {
            // The type of a boolean field contains its value.
            1 | 2 => Ok(()),
            3 => self.take(1).map(|_| ()),
            4..=6 => self.varint().map(|_| ()),
            7 => self.take(8).map(|_| ()),
            BINARY => {
                let length = self.varint()?;
                self.take(length).map(|_| ())
            }
            LIST | 10 => {
                let (kind, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip_item(kind, inner))
            }
            11 => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                for _ in 0..count {
                    self.skip_item(kinds >> 4, inner)?;
                    self.skip_item(kinds & 0x0f, inner)?;
                }
                Ok(())
            }
            STRUCT => {
                let mut id = 0;
                while let Some((next, kind)) = self.field(id)? {
                    id = next;
                    self.skip(kind, inner)?;
                }
                Ok(())
            }
            13 => self.take(16).map(|_| ()),
            _ => Err(corrupted_error()),
        }
    }

    /// Skips an item of a list or map. Unlike a boolean field, a boolean item occupies one byte.
    fn skip_item(&mut self, kind: u8, depth: usize) -> Result<(), String> {
        if matches!(kind, 1 | 2) { self.take(1).map(|_| ()) } else { self.skip(kind, depth) }
    }

    /// Checks a schema. The elements are in depth-first order, each with its number of children.
    fn check_schema(&mut self) -> Result<(), String> {
        let (kind, count) = self.list()?;
        if kind != STRUCT {
            return Err(corrupted_error());
        }
        if count > MAX_SCHEMA_ELEMENTS {
            return Err(format!(
                "the schema has {count} columns and groups, more than the limit of {MAX_SCHEMA_ELEMENTS}: write fewer columns"
            ));
        }
        // The number of remaining children of each open group.
        let mut open: Vec<i64> = Vec::new();
        for _ in 0..count {
            let children = self.children()?;
            while open.last() == Some(&0) {
                open.pop();
            }
            if let Some(remaining) = open.last_mut() {
                *remaining -= 1;
            }
            if children > 0 {
                open.push(children);
            }
            if open.len() > MAX_SCHEMA_DEPTH {
                return Err(format!(
                    "the groups of the schema are nested more than {MAX_SCHEMA_DEPTH} deep: write a flatter schema"
                ));
            }
        }
        Ok(())
    }

    /// Reads the number of children of a `SchemaElement`.
    fn children(&mut self) -> Result<i64, String> {
        let (mut id, mut children) = (0, 0);
        while let Some((next, kind)) = self.field(id)? {
            id = next;
            match (id, kind) {
                (5, I32) => children = self.signed()?,
                _ => self.skip(kind, MAX_DEPTH)?,
            }
        }
        Ok(children)
    }

    /// Reads a `PageHeader`.
    fn page(&mut self) -> Result<PageHeader, String> {
        let (mut id, mut page_type, mut decompressed, mut stored) = (0, -1, 0, 0);
        let (mut values, mut rows) = (0, 0);
        while let Some((next, kind)) = self.field(id)? {
            id = next;
            match (id, kind) {
                (1, I32) => page_type = self.signed()?,
                (2, I32) => decompressed = self.signed()?,
                (3, I32) => stored = self.signed()?,
                // The first field of a `DataPageHeader` is the number of values.
                (5, STRUCT) => values = self.number(1)?,
                // The third field of a `DataPageHeaderV2` is the number of rows.
                (8, STRUCT) => rows = self.number(3)?,
                _ => self.skip(kind, MAX_DEPTH)?,
            }
        }
        let size = |size: i64| u64::try_from(size).map_err(|_| corrupted_error());
        let kind = match page_type {
            0 => PageKind::DataV1 { values: size(values)? },
            2 => PageKind::Dictionary,
            3 => PageKind::DataV2 { rows: size(rows)? },
            _ => PageKind::Other,
        };
        Ok(PageHeader { kind, decompressed_bytes: size(decompressed)?, stored_bytes: size(stored)? })
    }

    /// Reads a struct, and returns the number in one of its fields, or 0.
    fn number(&mut self, wanted: i64) -> Result<i64, String> {
        let (mut id, mut number) = (0, 0);
        while let Some((next, kind)) = self.field(id)? {
            id = next;
            match kind {
                I32 if id == wanted => number = self.signed()?,
                _ => self.skip(kind, MAX_DEPTH)?,
            }
        }
        Ok(number)
    }
}

fn corrupted_error() -> String {
    "the footer cannot be read: the file is corrupted".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group with one child, as a `SchemaElement`: field 4 (name), field 5 (children).
    const GROUP: [u8; 6] = [0x48, 1, b'g', 0x15, 2, 0];

    fn footer_with_schema(elements: &[u8], count: usize) -> Vec<u8> {
        let mut footer = vec![0x15, 2, 0x19, 0xfc];
        varint(&mut footer, count as u64);
        footer.extend_from_slice(elements);
        footer.push(0);
        footer
    }

    fn varint(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    #[test]
    fn a_schema_that_nests_without_end_is_refused() {
        let deep = GROUP.repeat(1_000);
        let message = check_footer(&footer_with_schema(&deep, 1_000)).unwrap_err();
        assert!(message.contains("nested more than 64 deep"), "{message}");
        assert_eq!(check_footer(&footer_with_schema(&GROUP.repeat(60), 60)), Ok(()));
        // Siblings are not deep.
        let leaf = [0x48, 1, b'l', 0];
        let flat = [[0x48, 1, b'r', 0x15].as_slice(), &[0x80, 0x10, 0], &leaf.repeat(1_024)].concat();
        assert_eq!(check_footer(&footer_with_schema(&flat, 1_025)), Ok(()));
    }

    #[test]
    fn counts_that_the_bytes_cannot_hold_are_refused() {
        // Field 4, a list of structs that declares two billion elements.
        let mut footer = vec![0x49, 0xfc];
        varint(&mut footer, 2_000_000_000);
        assert!(check_footer(&footer).is_err());
        let mut footer = vec![0x49, 0xfc];
        varint(&mut footer, 40_000);
        footer.extend([0; 40_000]);
        assert!(check_footer(&footer).unwrap_err().contains("40000 row groups"));
        assert!(check_footer(&footer_with_schema(&[], 1_000_000)).is_err());
    }

    #[test]
    fn nonsense_ends() {
        for length in 0..64 {
            for byte in [0x00, 0x0c, 0x1c, 0x19, 0x1b, 0xff, 0x9c] {
                let _ = check_footer(&vec![byte; length]);
                let _ = decompressed_bytes(&vec![byte; length]);
            }
        }
        assert!(check_footer(&[0x1c; 10_000]).is_err(), "structs in structs");
    }

    #[test]
    fn pages_are_added_up_by_their_headers() {
        // Type, decompressed and stored size; then the page.
        let mut page = vec![0x15, 0, 0x15];
        varint(&mut page, 2 * 1_000_000_000);
        page.extend([0x15, 6, 0, 1, 2, 3]);
        assert_eq!(decompressed_bytes(&page), 1_000_000_000);
        assert_eq!(decompressed_bytes(&page.repeat(5)), 5_000_000_000);
        assert_eq!(decompressed_bytes(&page[..page.len() - 1]), 1_000_000_000, "cut short, but counted");
        assert_eq!(decompressed_bytes(b""), 0);
    }
}
