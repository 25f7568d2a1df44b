//! CMYK to RGB with the arithmetic of Pillow's `convert("RGB")`.

/// Converts `cmyk`, with four bytes per pixel and inverted as Adobe writes it, to `rgb` with three bytes per pixel.
///
/// Pillow treats every CMYK JPEG as inverted (`CMYK;I`) and converts it with `Convert.c: cmyk2rgb`.
pub(crate) fn convert_inverted_cmyk(cmyk: &[u8], rgb: &mut [u8]) {
    for (ink, pixel) in cmyk.chunks_exact(4).zip(rgb.chunks_exact_mut(3)) {
        let light = u32::from(ink[3]);
        for channel in 0..3 {
            let covered = u32::from(255 - ink[channel]);
            let product = covered * light + 128;
            pixel[channel] = (light - (((product >> 8) + product) >> 8)) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_ink_is_white_and_full_black_is_black() {
        let mut rgb = [0; 9];
        convert_inverted_cmyk(&[255, 255, 255, 255, 255, 255, 255, 0, 0, 255, 128, 255], &mut rgb);
        assert_eq!(rgb, [255, 255, 255, 0, 0, 0, 0, 255, 128]);
    }
}
