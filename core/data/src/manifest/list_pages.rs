//! The pages of lists in Parquet files whose headers do not contain the number of rows.

use serde::{Deserialize, Serialize};

/// The data pages of a column chunk of lists, in a Parquet file without a page index. The headers of the first version of pages
/// contain the number of values, but not the number of rows, and a row may continue in the next page. Indexing counts the rows, so
/// that a block reads only its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPages {
    /// The index of the row group.
    pub group: u32,
    /// The index of the leaf column.
    pub column: u32,
    /// The size of the dictionary after decompression in bytes, or 0.
    pub dictionary_bytes: u64,
    /// The pages in storage order, without those that have no values.
    pub pages: Vec<ListPage>,
}

/// A data page of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPage {
    /// The offset of the page in the file.
    pub offset: u64,
    /// The size of the page in the file in bytes, with its header.
    pub stored_bytes: u32,
    /// The size of the page after decompression in bytes.
    pub decompressed_bytes: u32,
    /// The number of rows of the row group that begin before the page.
    pub rows_before: u64,
    /// Whether the page begins with values of a row that begins in an earlier page.
    pub begins_within_row: bool,
}

impl ListPages {
    /// Checks that the pages are in order, for a row group of `rows` rows in the byte range `chunk`.
    ///
    /// # Errors
    /// Returns the reason why they cannot be the pages of the column chunk.
    pub fn check(&self, rows: u64, chunk: std::ops::Range<u64>) -> Result<(), String> {
        let (mut end, mut rows_before) = (chunk.start, 0);
        for (at, page) in self.pages.iter().enumerate() {
            let next = page.offset.saturating_add(page.stored_bytes.into());
            let is_first = at == 0 && page.rows_before == 0 && !page.begins_within_row;
            let is_later = at > 0 && page.rows_before >= rows_before.max(page.begins_within_row.into());
            if page.offset < end || next > chunk.end || page.rows_before > rows || !(is_first || is_later) {
                return Err(format!(
                    "page {at} of column {} of row group {} is out of order",
                    self.column, self.group
                ));
            }
            (end, rows_before) = (next, page.rows_before);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(pages: &[(u64, u32, u64, bool)]) -> ListPages {
        let page = |&(offset, stored_bytes, rows_before, begins_within_row)| ListPage {
            offset,
            stored_bytes,
            decompressed_bytes: 7,
            rows_before,
            begins_within_row,
        };
        ListPages { group: 1, column: 2, dictionary_bytes: 0, pages: pages.iter().map(page).collect() }
    }

    #[test]
    fn pages_are_in_order_and_within_their_chunk() {
        let check = |list: &[(u64, u32, u64, bool)]| pages(list).check(10, 100..200);
        assert_eq!(check(&[(100, 20, 0, false), (120, 30, 4, true), (150, 50, 4, true)]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
        let wrong = [
            &[(99, 20, 0, false)][..],
            &[(100, 20, 1, false)],
            &[(100, 20, 0, true)],
            &[(100, 20, 0, false), (119, 20, 3, false)],
            &[(100, 20, 0, false), (120, 81, 3, false)],
            &[(100, 20, 0, false), (120, 20, 11, false)],
            &[(100, 20, 0, false), (120, 20, 0, true)],
            &[(100, 20, 0, false), (120, 20, 5, false), (140, 20, 4, false)],
        ];
        for list in wrong {
            let error = check(list).unwrap_err();
            assert!(error.contains("of column 2 of row group 1 is out of order"), "{list:?}: {error}");
        }
    }
}
