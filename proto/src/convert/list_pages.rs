//! The pages of lists in Parquet files. They are packed: one list for each field of a page.

use feedline_data::manifest::{ListPage, ListPages};

use super::{Wire, WireError};
use crate::wire;

impl Wire<wire::ListPages> for ListPages {
    fn into_wire(self) -> wire::ListPages {
        let pages = self.pages;
        wire::ListPages {
            group: self.group,
            column: self.column,
            dictionary_bytes: self.dictionary_bytes,
            offsets: pages.iter().map(|page| page.offset).collect(),
            stored_bytes: pages.iter().map(|page| page.stored_bytes).collect(),
            decompressed_bytes: pages.iter().map(|page| page.decompressed_bytes).collect(),
            rows_before: pages.iter().map(|page| page.rows_before).collect(),
            begins_within_row: pages.iter().map(|page| page.begins_within_row).collect(),
        }
    }

    fn from_wire(message: wire::ListPages, field: &str) -> Result<Self, WireError> {
        let count = message.offsets.len();
        let lengths = [
            message.stored_bytes.len(),
            message.decompressed_bytes.len(),
            message.rows_before.len(),
            message.begins_within_row.len(),
        ];
        if lengths != [count; 4] {
            return Err(WireError(format!("the lists of `{field}` do not all have {count} entries")));
        }
        let page = |at: usize| ListPage {
            offset: message.offsets[at],
            stored_bytes: message.stored_bytes[at],
            decompressed_bytes: message.decompressed_bytes[at],
            rows_before: message.rows_before[at],
            begins_within_row: message.begins_within_row[at],
        };
        Ok(Self {
            group: message.group,
            column: message.column,
            dictionary_bytes: message.dictionary_bytes,
            pages: (0..count).map(page).collect(),
        })
    }
}
