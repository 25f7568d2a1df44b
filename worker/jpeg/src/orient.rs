//! The eight EXIF orientations: maps regions and pixels of the upright image to the stored image.

use crate::region::Region;

/// The rotation and reflection that make a stored image upright, as Pillow's `ImageOps.exif_transpose` does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Orientation {
    /// Whether rows and columns are exchanged.
    swap: bool,
    /// Whether stored columns are in reverse order.
    flip_x: bool,
    /// Whether stored rows are in reverse order.
    flip_y: bool,
}

impl Orientation {
    /// Returns the orientation for the value of an EXIF tag, 1 to 8.
    pub fn from_tag(tag: u32) -> Option<Self> {
        let (swap, flip_x, flip_y) = match tag {
            1 => (false, false, false),
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, false, true),
            7 => (true, true, true),
            8 => (true, true, false),
            _ => return None,
        };
        Some(Self { swap, flip_x, flip_y })
    }

    /// Returns the value of the EXIF tag, 1 to 8.
    pub fn tag(self) -> u32 {
        (1..=8)
            .find(|&tag| Self::from_tag(tag) == Some(self))
            .expect("the eight tags cover all flag combinations")
    }

    /// Whether the stored image is upright.
    pub fn is_upright(self) -> bool {
        self == Self::default()
    }

    /// Returns width and height of the upright image.
    pub fn upright_size(self, stored_width: u32, stored_height: u32) -> (u32, u32) {
        if self.swap { (stored_height, stored_width) } else { (stored_width, stored_height) }
    }

    /// Returns the rectangle of the stored image that contains a region of the upright image.
    pub(crate) fn stored_region(self, upright: Region, stored_width: u32, stored_height: u32) -> Region {
        let (along_x, along_y) = ((upright.x, upright.width), (upright.y, upright.height));
        let ((x, width), (y, height)) = if self.swap { (along_y, along_x) } else { (along_x, along_y) };
        Region {
            x: if self.flip_x { stored_width - x - width } else { x },
            y: if self.flip_y { stored_height - y - height } else { y },
            width,
            height,
        }
    }

    /// Copies the rectangle `wanted` of the pixels `stored`, which have rows of `stored_width`, to `out` in upright orientation.
    pub(crate) fn copy_upright(self, stored: &[u8], stored_width: u32, wanted: Region, out: &mut [u8]) {
        let pitch = stored_width as usize * 3;
        let (width, height) = (wanted.width as usize, wanted.height as usize);
        let start = wanted.y as usize * pitch + wanted.x as usize * 3;
        let (out_width, out_height) = if self.swap { (height, width) } else { (width, height) };
        for (y, row) in out.chunks_exact_mut(out_width * 3).take(out_height).enumerate() {
            for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
                let (across, down) = if self.swap { (y, x) } else { (x, y) };
                let across = if self.flip_x { width - 1 - across } else { across };
                let down = if self.flip_y { height - 1 - down } else { down };
                let at = start + down * pitch + across * 3;
                pixel.copy_from_slice(&stored[at..at + 3]);
            }
        }
    }
}
