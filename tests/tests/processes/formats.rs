//! The same data in different formats produces the same batches.

use feedline_tests::{Scratch, assert_clean, data};
use serde_json::Value;

fn images(scratch: &Scratch, format: &str, url: &str, features: &str) -> Value {
    let text = format!(
        "
name: {format}
source: {{ url: {url}, format: {format}, features: {{ image: {features} }} }}
seed: 3
operators:
  - random_resized_crop: {{ column: image, size: [64, 64] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: 32 }}
"
    );
    let file = scratch.write(&format!("{format}.yaml"), &text);
    let report = scratch.run(&file, &["--workers", "2"]);
    assert_clean(&report);
    report
}

#[test]
fn four_formats_deliver_the_same_images() {
    let scratch = Scratch::new();
    let photos = data::photographs("four formats run on generated images instead, since it");
    let photos = photos.map(|path| path.to_str().expect("the path is text").to_owned());
    for format in ["tfrecord", "webdataset", "parquet", "files", "arrow"] {
        let mut arguments = vec!["--format", format];
        match &photos {
            Some(photos) => arguments.extend(["--from", photos]),
            None => arguments.extend(["--rows", "120", "--seed", "5"]),
        }
        scratch.make_data("images", format, &arguments);
    }
    let url = |format: &str, ending: &str| format!("{}/*{ending}", scratch.file(format));
    let tfrecord = images(&scratch, "tfrecord", &url("tfrecord", ".tfrecord"), "image/encoded");
    let webdataset = images(&scratch, "webdataset", &url("webdataset", ".tar"), "jpg");
    let parquet = images(&scratch, "parquet", &url("parquet", ".parquet"), "image");
    let arrow = images(&scratch, "arrow", &url("arrow", ".arrow"), "image");
    let files = images(&scratch, "files", &format!("{}/*", scratch.file("files")), "bytes");
    for other in [&webdataset, &parquet, &arrow, &files] {
        assert_eq!(other["digest"], tfrecord["digest"]);
        assert_eq!(other["content_digest"], tfrecord["content_digest"]);
    }
    assert_eq!(tfrecord["rows"], if photos.is_some() { 400 } else { 120 });
}

#[test]
fn every_tabular_format_delivers_the_same_rows() {
    let scratch = Scratch::new();
    let mut digests = Vec::new();
    for format in ["jsonl", "csv", "parquet", "arrow"] {
        scratch.make_data("table", format, &["--format", format, "--rows", "5000", "--seed", "2"]);
        let text = format!(
            "
name: table
source: {{ url: \"{}/*\", format: {format} }}
seed: 3
shuffle: {{ window: 0 }}
operators:
  - filter: {{ where: \"label < 5 AND value > 0.25\" }}
  - select: {{ columns: [id, label, group] }}
  - batch: {{ size: 100 }}
",
            scratch.file(format)
        );
        let file = scratch.write(&format!("{format}.yaml"), &text);
        let report = scratch.run(&file, &["--workers", "2"]);
        assert_clean(&report);
        assert!(report["rows"].as_u64().is_some_and(|rows| rows > 500 && rows < 4000), "{report}");
        digests.push((format, report["digest"].clone()));
    }
    for (format, digest) in &digests {
        assert_eq!(*digest, digests[0].1, "{format} differs from {}", digests[0].0);
    }
}

/// A NumPy file, as `np.save` writes it.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{header:117}\n");
    [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), header.as_bytes(), data].concat()
}

#[test]
fn numpy_arrays_deliver_the_rows_of_the_same_lines() {
    let scratch = Scratch::new();
    let pipeline = |format: &str| {
        format!(
            "
name: numbers
source: {{ url: \"{}/*\", format: {format} }}
seed: 3
shuffle: {{ window: 64 }}
operators:
  - filter: {{ where: \"data > 10\" }}
  - batch: {{ size: 100 }}
",
            scratch.file(format)
        )
    };
    for shard in 0..3_i64 {
        let values: Vec<i64> = (0..700).map(|row| (shard * 700 + row) * 37 % 101).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let lines: String = values.iter().map(|value| format!("{{\"data\": {value}}}\n")).collect();
        for (format, bytes) in [("npy", npy("<i8", "(700,)", &bytes)), ("jsonl", lines.into_bytes())] {
            std::fs::create_dir_all(scratch.path().join(format)).expect("the scratch directory is writable");
            std::fs::write(scratch.path().join(format).join(format!("{shard}.{format}")), bytes)
                .expect("the scratch directory is writable");
        }
    }
    let reports = ["npy", "jsonl"].map(|format| {
        let file = scratch.write(&format!("{format}.yaml"), &pipeline(format));
        let report = scratch.run(&file, &["--workers", "2"]);
        assert_clean(&report);
        report
    });
    assert!(reports[0]["rows"].as_u64().is_some_and(|rows| rows > 1_500 && rows < 2_100), "{}", reports[0]);
    assert_eq!(reports[0]["rows"], reports[1]["rows"]);
    assert_eq!(reports[0]["content_digest"], reports[1]["content_digest"]);
}

#[test]
fn the_error_for_an_array_of_objects_names_the_file_and_the_fix() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path().join("a.npy"), npy("|O", "(2,)", b"pickle"))
        .expect("the scratch directory is writable");
    let text = format!(
        "name: a\nsource: {{ url: \"{}\", format: npy }}\noperators: [ batch: {{ size: 2 }} ]\n",
        scratch.file("a.npy")
    );
    let call = scratch.call(&["run", &scratch.write("a.yaml", &text)]);
    assert_eq!(call.status, 1, "{}", call.stderr);
    assert!(call.stderr.contains("a.npy") && call.stderr.contains("np.save"), "{}", call.stderr);
}
