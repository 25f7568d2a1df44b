//! Tests of resized pixels against Pillow's.

use super::*;
use crate::testing::{difference, photo, testdata};

#[derive(Debug)]
struct Case {
    file: String,
    kind: String,
    size: Size,
    bounds: Option<[u32; 4]>,
    resize: Option<u32>,
}

fn cases() -> Vec<Case> {
    let parsed: Vec<serde_json::Value> = serde_json::from_slice(&testdata("resized.json")).unwrap();
    let number = |value: &serde_json::Value| value.as_u64().map(|number| number as u32);
    let case = |value: &serde_json::Value| Case {
        file: value["file"].as_str().unwrap().to_owned(),
        kind: value["kind"].as_str().unwrap().to_owned(),
        size: [0, 1].map(|axis| number(&value["size"][axis]).unwrap()),
        bounds: value.get("box").map(|bounds| [0, 1, 2, 3].map(|side| number(&bounds[side]).unwrap())),
        resize: number(&value["resize"]),
    };
    parsed.iter().map(case).collect()
}

impl Case {
    fn cut(&self, width: u32, height: u32) -> CropPlan {
        match (self.kind.as_str(), self.bounds) {
            ("resize", _) => CropPlan::whole(width, height, self.size),
            ("crop", Some([left, top, right, bottom])) => CropPlan::resized(
                Region { x: left, y: top, width: right - left, height: bottom - top },
                self.size,
            ),
            _ => CropPlan::centered(width, height, self.size, self.resize),
        }
    }
}

#[test]
fn pixels_equal_pillows() {
    let (width, height, pixels) = photo();
    let mut scratch = RenderScratch::new();
    for case in cases() {
        // Earlier contents of the storage must not affect the image.
        let mut out = vec![0xAA; (case.size[0] * case.size[1] * 3) as usize];
        let picture = Picture::Decoded { width, height, pixels };
        scratch.render(picture, |width, height| case.cut(width, height), case.size, &mut out).unwrap();
        let (mean, worst) = difference(&out, &testdata(&case.file));
        assert!(mean < 0.3 && worst <= 2, "{case:?}: mean {mean}, worst {worst}");
    }
}

#[test]
fn a_region_of_a_jpeg_has_the_same_pixels_as_in_the_whole_image() {
    let mut scratch = RenderScratch::new();
    for name in ["420", "exif6", "progressive", "cmyk"] {
        let jpeg = testdata(&format!("../../jpeg/testdata/{name}.jpg"));
        let whole = scratch.decode(&jpeg).unwrap();
        for case in cases().into_iter().filter(|case| case.bounds.is_none()) {
            let mut outs = [vec![0; (case.size[0] * case.size[1] * 3) as usize], Vec::new()];
            outs[1] = outs[0].clone();
            let decoded = Picture::Decoded { width: whole.width, height: whole.height, pixels: &whole.data };
            for (picture, out) in [Picture::Encoded(&jpeg), decoded].into_iter().zip(&mut outs) {
                scratch.render(picture, |width, height| case.cut(width, height), case.size, out).unwrap();
            }
            assert!(outs[0] == outs[1], "{name} {case:?}");
        }
    }
}

#[test]
fn a_constant_image_stays_constant() {
    let pixels = [77; 40 * 30 * 3];
    let mut out = vec![0; 17 * 19 * 3];
    let picture = Picture::Decoded { width: 40, height: 30, pixels: &pixels };
    RenderScratch::new().render(picture, |w, h| CropPlan::whole(w, h, [17, 19]), [17, 19], &mut out).unwrap();
    assert!(out.iter().all(|&value| value == 77));
}
