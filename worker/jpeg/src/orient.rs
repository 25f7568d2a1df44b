//! The eight EXIF orientations: regions and pixels of the upright image in terms of the stored one.

use crate::Region;

/// How a stored image is turned to be upright, as Pillow's `ImageOps.exif_transpose` does it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Orientation {
    /// Rows and columns trade places.
    swap: bool,
    /// Stored columns run the other way.
    flip_x: bool,
    /// Stored rows run the other way.
    flip_y: bool,
}

impl Orientation {
    /// The orientation of an EXIF tag's value, 1 to 8.
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

    /// The EXIF tag's value, 1 to 8.
    pub fn tag(self) -> u32 {
        (1..=8)
            .find(|&tag| Self::from_tag(tag) == Some(self))
            .expect("the eight tags cover all flag combinations")
    }

    /// Whether the stored image is upright already.
    pub fn is_upright(self) -> bool {
        self == Self::default()
    }

    /// Width and height of the upright image.
    pub fn upright_size(self, stored_width: u32, stored_height: u32) -> (u32, u32) {
        if self.swap { (stored_height, stored_width) } else { (stored_width, stored_height) }
    }

    /// The stored rectangle that holds an upright region.
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

    /// Copies `wanted`, a rectangle of the stored pixels `stored` (rows of `stored_width`), upright into `out`.
    pub(crate) fn turn(self, stored: &[u8], stored_width: u32, wanted: Region, out: &mut [u8]) {
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
