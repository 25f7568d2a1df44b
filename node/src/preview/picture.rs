//! Pictures for pages: detects encoded images, converts tensors to pixels, and encodes pixels as PNG.

use feedline_data::pipeline::{Normalize, TensorLayout};
use feedline_data::schema::ScalarType;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

/// Minimum height and width of a tensor that is shown as an image. Smaller tensors are probably not images.
const MIN_SIDE: u32 = 8;
/// Maximum number of pixels of an encoded picture.
const MAX_PIXELS: u64 = 16 << 20;

/// An encoded picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EncodedPicture {
    /// The name of the encoding, such as `JPEG`.
    pub(crate) encoding: &'static str,
    /// The media type, such as `image/jpeg`.
    pub(crate) media_type: &'static str,
    /// The encoded bytes.
    pub(crate) bytes: Vec<u8>,
    /// Whether the values of a tensor were converted back to pixels.
    pub(crate) is_denormalized: bool,
}

/// Returns encoded bytes that a browser can show.
pub(crate) fn of_encoded(bytes: &[u8]) -> Option<EncodedPicture> {
    let (encoding, media_type) = match bytes {
        [0xff, 0xd8, 0xff, ..] => ("JPEG", "image/jpeg"),
        [0x89, b'P', b'N', b'G', ..] => ("PNG", "image/png"),
        [b'G', b'I', b'F', b'8', ..] => ("GIF", "image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => ("WebP", "image/webp"),
        _ => return None,
    };
    Some(EncodedPicture { encoding, media_type, bytes: bytes.to_vec(), is_denormalized: false })
}

/// Encodes RGB8 pixels.
pub(crate) fn of_pixels(width: u32, height: u32, pixels: &[u8]) -> Option<EncodedPicture> {
    let area = u64::from(width) * u64::from(height);
    if area == 0 || area > MAX_PIXELS || pixels.len() as u64 != area * 3 {
        return None;
    }
    let mut bytes = Vec::new();
    PngEncoder::new(&mut bytes).write_image(pixels, width, height, ExtendedColorType::Rgb8).ok()?;
    Some(EncodedPicture { encoding: "PNG", media_type: "image/png", bytes, is_denormalized: false })
}

/// Converts a tensor with the shape of an image, of one or three channels. Values of `normalize` are converted back. Other
/// floating-point tensors are images only if all values are between 0 and 1.
pub(crate) fn of_tensor(
    scalar: ScalarType,
    shape: &[u32],
    numbers: &[f64],
    normalize: Option<&Normalize>,
) -> Option<EncodedPicture> {
    let &[first, second, third] = shape else { return None };
    let is_channels = |extent: u32| matches!(extent, 1 | 3);
    let layout = match normalize {
        Some(normalize) => normalize.layout,
        None if is_channels(third) => TensorLayout::Hwc,
        None => TensorLayout::Chw,
    };
    let [height, width, channels] = match layout {
        TensorLayout::Hwc => [first, second, third],
        TensorLayout::Chw => [second, third, first],
    };
    if !is_channels(channels) || height < MIN_SIDE || width < MIN_SIDE {
        return None;
    }
    let is_unit = || numbers.iter().all(|number| (0.0..=1.0).contains(number));
    let factor = match (scalar, normalize) {
        (_, Some(_)) => 255.0,
        (ScalarType::UInt8, None) => 1.0,
        (ScalarType::Float16 | ScalarType::Float32 | ScalarType::Float64, None) if is_unit() => 255.0,
        _ => return None,
    };
    let (area, channels) = (height as usize * width as usize, channels as usize);
    let of_channel = |values: &[f64], channel: usize| *values.get(channel).or(values.first()).unwrap_or(&0.0);
    let pixel = |at: usize, channel: usize| {
        let channel = channel % channels;
        let index = match layout {
            TensorLayout::Hwc => at * channels + channel,
            TensorLayout::Chw => channel * area + at,
        };
        let number = *numbers.get(index).unwrap_or(&0.0);
        let value = match normalize {
            Some(normalize) => {
                number * of_channel(&normalize.std, channel) + of_channel(&normalize.mean, channel)
            }
            None => number,
        };
        (value * factor).round().clamp(0.0, 255.0) as u8
    };
    let pixels: Vec<u8> = (0..area)
        .flat_map(|at| (0..3).map(move |channel| (at, channel)))
        .map(|(at, c)| pixel(at, c))
        .collect();
    let is_denormalized = normalize.is_some();
    of_pixels(width, height, &pixels).map(|picture| EncodedPicture { is_denormalized, ..picture })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(picture: &EncodedPicture) -> Vec<u8> {
        image::load_from_memory(&picture.bytes).unwrap().to_rgb8().into_raw()
    }

    #[test]
    fn normalized_tensors_are_converted_back() {
        let original: Vec<u8> = (0..8 * 9 * 3).map(|value| (value * 7 % 256) as u8).collect();
        let (mean, std) = (vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]);
        for layout in [TensorLayout::Hwc, TensorLayout::Chw] {
            let normalize = Normalize {
                column: "image".to_owned(),
                mean: mean.clone(),
                std: std.clone(),
                dtype: ScalarType::Float32,
                layout,
            };
            let mut numbers = vec![0.0; original.len()];
            for (index, value) in original.iter().enumerate() {
                let (at, channel) = (index / 3, index % 3);
                let index = if layout == TensorLayout::Hwc { index } else { channel * 72 + at };
                numbers[index] = (f64::from(*value) / 255.0 - mean[channel]) / std[channel];
            }
            let shape = if layout == TensorLayout::Hwc { [8, 9, 3] } else { [3, 8, 9] };
            let picture = of_tensor(ScalarType::Float32, &shape, &numbers, Some(&normalize)).unwrap();
            assert_eq!(decoded(&picture), original);
            assert!(picture.is_denormalized);
        }
    }

    #[test]
    fn only_tensors_with_the_shape_and_values_of_an_image_are_pictures() {
        let gray = of_tensor(ScalarType::UInt8, &[8, 8, 1], &[200.0; 64], None).unwrap();
        assert_eq!(decoded(&gray), [200; 192]);
        let unit = of_tensor(ScalarType::Float32, &[3, 8, 8], &[1.0; 192], None).unwrap();
        assert_eq!(decoded(&unit), [255; 192]);
        assert!(of_tensor(ScalarType::Float32, &[3, 8, 8], &[1.5; 192], None).is_none());
        assert!(of_tensor(ScalarType::UInt8, &[4, 4, 3], &[0.0; 48], None).is_none());
        assert!(of_tensor(ScalarType::UInt8, &[192], &[0.0; 192], None).is_none());
    }

    #[test]
    fn encoded_images_are_detected() {
        let encodings = [b"\xff\xd8\xff\xe0".as_slice(), b"\x89PNG\r\n", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 "];
        let names: Vec<_> = encodings.iter().map(|bytes| of_encoded(bytes).unwrap().encoding).collect();
        assert_eq!(names, ["JPEG", "PNG", "GIF", "WebP"]);
        assert!(of_encoded(b"<svg onload=alert(1)>").is_none() && of_encoded(b"").is_none());
    }
}
