//! Rectangles of the upright image and of the decoded pixels.

/// A rectangle in pixels of the upright image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First column.
    pub x: u32,
    /// First row.
    pub y: u32,
    /// Number of columns.
    pub width: u32,
    /// Number of rows.
    pub height: u32,
}

/// The location of the requested region within the decoded pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodedRegion {
    /// Number of decoded columns, at least the columns of the region.
    pub width: u32,
    /// Number of decoded rows, at least the rows of the region.
    pub height: u32,
    /// First column of the region within the decoded pixels.
    pub x_offset: u32,
    /// First row of the region within the decoded pixels.
    pub y_offset: u32,
}

impl DecodedRegion {
    /// Size of the decoded pixels in bytes.
    pub fn bytes(&self) -> usize {
        self.width as usize * self.height as usize * 3
    }
}
