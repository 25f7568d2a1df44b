//! Pixels equal those of Pillow after an antialiased bilinear resize and a centre crop, also at sizes for which the decoder
//! scales the image down.

use std::process::Command;

use feedline_tests::{Scratch, data, embedded};

/// torchvision's Resize(resize), CenterCrop(size), with Pillow; then compares with the tensors in a file.
const REFERENCE: &str = "
import sys, json
import numpy as np
from PIL import Image
resize, side = int(sys.argv[3]), int(sys.argv[4])
ours = np.fromfile(sys.argv[1], dtype=np.uint8).reshape(-1, side, side, 3)
paths = [line for line in open(sys.argv[2]).read().split('\\n') if line]
assert len(paths) == len(ours), (len(paths), len(ours))
worst, total = 0.0, 0.0
for path, tensor in zip(paths, ours):
    image = Image.open(path).convert('RGB')
    w, h = image.size
    if w <= h:
        size = (resize, int(resize * h / w))
    else:
        size = (int(resize * w / h), resize)
    image = image.resize(size, Image.BILINEAR)
    left = int(round((size[0] - side) / 2.0)); top = int(round((size[1] - side) / 2.0))
    expected = np.asarray(image.crop((left, top, left + side, top + side)))
    difference = np.abs(expected.astype(np.int16) - tensor.astype(np.int16)).mean()
    worst = max(worst, float(difference)); total += float(difference)
print(json.dumps({'images': len(paths), 'mean': total / len(paths), 'worst': worst}))
";

#[test]
fn center_crops_equal_those_of_pillow() {
    compare(256, 224);
}

#[test]
fn small_center_crops_equal_those_of_pillow() {
    compare(64, 56);
}

fn compare(resize: u32, side: u32) {
    let Some(photos) = data::photographs("comparing pixels") else { return };
    let Some(python) = data::python("comparing pixels with Pillow") else { return };
    let scratch = Scratch::new();
    let pipeline = format!(
        "name: pixels\nsource: {{ url: \"{}/*\", format: files, features: {{ image: bytes, path: path }} }}\noperators:\n  - center_crop: {{ column: image, size: [{side}, {side}], resize: {resize} }}\n  - batch: {{ size: 50 }}\n",
        photos.display()
    );
    let (mut pixels, mut paths) = (Vec::new(), Vec::new());
    embedded::for_each_batch(scratch.path(), &pipeline, |records| {
        pixels.extend(embedded::tensor_bytes(records, "image"));
        paths.extend(embedded::texts(records, "path"));
    });
    assert_eq!(paths.len(), 400);
    let paths: Vec<&str> = paths.iter().map(|path| path.trim_start_matches("file://")).collect();
    std::fs::write(scratch.file("pixels"), pixels).expect("the scratch directory is writable");
    let list = scratch.write("paths", &paths.join("\n"));
    let output = Command::new(python)
        .args(["-c", REFERENCE, &scratch.file("pixels"), &list])
        .args([resize.to_string(), side.to_string()])
        .output()
        .expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("the script prints JSON");
    eprintln!("resized to {resize}, cut to {side}: mean absolute difference from Pillow, of 255: {found}");
    assert_eq!(found["images"], 400);
    assert!(found["mean"].as_f64().is_some_and(|mean| mean < 1.0), "{found}");
    assert!(found["worst"].as_f64().is_some_and(|worst| worst < 3.0), "{found}");
}
