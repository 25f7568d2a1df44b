//! Datasets that are read where they are: directories of classes, `key=value` directories, and Hugging Face datasets.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Schema};
use feedline_tests::{Scratch, assert_clean};
use parquet::arrow::ArrowWriter;
use serde_json::Value;

fn write(scratch: &Scratch, name: &str, bytes: impl AsRef<[u8]>) {
    let path = scratch.path().join(name);
    std::fs::create_dir_all(path.parent().expect("a file has a directory"))
        .expect("the scratch directory is writable");
    std::fs::write(path, bytes).expect("the scratch directory is writable");
}

/// Runs a pipeline with this source.
fn run(scratch: &Scratch, source: &str) -> Value {
    let text = format!("name: layouts\nsource: {source}\noperators: [ batch: {{ size: 4 }} ]\n");
    let report = scratch.run(&scratch.write("layouts.yaml", &text), &["--workers", "2"]);
    assert_clean(&report);
    report
}

/// The error of such a pipeline.
fn error(scratch: &Scratch, source: &str) -> String {
    let text = format!("name: layouts\nsource: {source}\noperators: [ batch: {{ size: 4 }} ]\n");
    let call = scratch.call(&["run", &scratch.write("layouts.yaml", &text)]);
    assert_eq!(call.status, 1, "{}", call.stderr);
    call.stderr
}

#[test]
fn directories_of_classes_deliver_the_rows_of_a_table() {
    let scratch = Scratch::new();
    let mut lines = String::new();
    for (label, class) in ["cat", "dog", "eel"].into_iter().enumerate() {
        for at in 0..3 {
            write(&scratch, &format!("images/{class}/{at}.jpg"), format!("{class} {at}"));
            lines.push_str(&format!("{{\"class\": \"{class}\", \"label\": {label}}}\n"));
        }
    }
    write(&scratch, "images/readme.txt", "no image");
    write(&scratch, "table.jsonl", lines);
    let columns = "features: { class: class, label: label }";
    let images = format!("{{ url: {}, format: imagefolder, {columns} }}", scratch.file("images"));
    let table = format!("{{ url: {}, format: jsonl, {columns} }}", scratch.file("table.jsonl"));
    let (images, table) = (run(&scratch, &images), run(&scratch, &table));
    assert_eq!((&images["rows"], &images["content_digest"]), (&Value::from(9), &table["content_digest"]));
    std::fs::create_dir(scratch.path().join("images/fox")).expect("the scratch directory is writable");
    let source = format!("{{ url: {}, format: imagefolder }}", scratch.file("images"));
    assert!(error(&scratch, &source).contains("the class directories `fox` contain no images"));
}

#[test]
fn a_filter_excludes_directories_without_reading_them() {
    let scratch = Scratch::new();
    for year in [2023, 2024] {
        let lines: String = (0..10).map(|row| format!("{{\"v\": {row}}}\n")).collect();
        write(&scratch, &format!("events/year={year}/kind=a/0.jsonl"), lines);
    }
    write(&scratch, "events/year=2024/kind=broken/0.jsonl", "this is not JSON\n");
    let source = format!("{{ url: {}/, format: jsonl, partitions: hive }}", scratch.file("events"));
    let text = |predicate: &str| {
        format!(
            "name: layouts\nsource: {source}\noperators:\n  - filter: {{ where: \"{predicate}\" }}\n  - batch: {{ size: 4 }}\n"
        )
    };
    let rows = |predicate: &str| {
        let report = scratch.run(&scratch.write("hive.yaml", &text(predicate)), &["--workers", "2"]);
        assert_clean(&report);
        report["rows"].as_u64()
    };
    assert_eq!(rows("year = 2023"), Some(10));
    assert_eq!(rows("kind = 'a' AND v < 5"), Some(10));
    assert_eq!(rows("kind = 'a' AND year > 2023 AND v >= 8"), Some(2));
    let call = scratch.call(&["run", &scratch.write("none.yaml", &text("year = 1999"))]);
    assert!(call.stderr.contains("excludes all 3 shards: the directories have kind=a"), "{}", call.stderr);
    let call = scratch.call(&["run", &scratch.write("all.yaml", &text("v >= 0"))]);
    assert!(call.status == 1 && call.stderr.contains("kind=broken"), "{}", call.stderr);
}

#[test]
fn saved_datasets_of_hugging_face_are_read() {
    let scratch = Scratch::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/sources/testdata/layouts");
    let at = |name: &str| data.join(name).to_str().expect("the path is text").to_owned();
    let features = "features: { image: audio, class: label.name }";
    let saved = format!("{{ url: {}, format: huggingface, {features} }}", at("saved"));
    let parquet = format!("{{ url: {}, format: parquet, {features} }}", at("features.parquet"));
    let (saved, parquet) = (run(&scratch, &saved), run(&scratch, &parquet));
    assert_eq!(saved["rows"], 5);
    assert_eq!(saved["content_digest"], parquet["content_digest"]);
    let dict = |split: &str| format!("{{ url: {}, format: huggingface{split} }}", at("dict"));
    assert_eq!(run(&scratch, &dict(", split: test"))["rows"], 3);
    assert!(error(&scratch, &dict("")).contains("set `source.split` to one of `train`, `test`"));
    assert!(error(&scratch, &dict(", split: dev")).contains("no split `dev`"));
}

/// Writes the images of a directory as the library `datasets` does: structs of bytes and path, with a feature in the metadata.
fn write_image_feature(from: &str, to: &str) {
    let mut files: Vec<_> = fs::read_dir(from)
        .expect("the directory exists")
        .map(|entry| entry.expect("the directory is readable").path())
        .collect();
    files.sort();
    let bytes: Vec<Vec<u8>> =
        files.iter().map(|file| fs::read(file).expect("the file is readable")).collect();
    let paths: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let fields = Fields::from(vec![
        Field::new("bytes", DataType::Binary, true),
        Field::new("path", DataType::Utf8, true),
    ]);
    let children: Vec<ArrayRef> = vec![
        Arc::new(BinaryArray::from_iter_values(&bytes)),
        Arc::new(StringArray::from_iter_values(&paths)),
    ];
    let images: ArrayRef = Arc::new(StructArray::new(fields.clone(), children, None));
    let features = r#"{"info": {"features": {"image": {"_type": "Image"}}}}"#;
    let metadata = HashMap::from([("huggingface".to_owned(), features.to_owned())]);
    let field = Field::new("image", DataType::Struct(fields), true);
    let schema = Arc::new(Schema::new_with_metadata(vec![field], metadata));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![images]).expect("the column has the type");
    let file = File::create(to).expect("the scratch directory is writable");
    let mut writer = ArrowWriter::try_new(file, schema, None).expect("the types are supported");
    writer.write(&batch).expect("the file is writable");
    writer.close().expect("the file is writable");
}

#[test]
fn an_image_feature_of_hugging_face_delivers_the_images_of_the_files() {
    let scratch = Scratch::new();
    scratch.make_data("images", "files", &["--format", "files", "--rows", "20", "--seed", "5"]);
    let (files, parquet) = (scratch.file("files"), scratch.file("images.parquet"));
    write_image_feature(&files, &parquet);
    let images = |source: &str| {
        let text = format!(
            "name: images\nsource: {source}\nseed: 3\noperators:\n  - random_resized_crop: {{ column: image, size: [64, 64] }}\n  \
             - batch: {{ size: 4 }}\n"
        );
        let report = scratch.run(&scratch.write("images.yaml", &text), &["--workers", "2"]);
        assert_clean(&report);
        assert_eq!(report["rows"], 20, "{source}");
        report["content_digest"].clone()
    };
    let of_files = images(&format!("{{ url: \"{files}/*\", format: files, features: {{ image: bytes }} }}"));
    let of_feature = images(&format!("{{ url: {parquet}, format: parquet, features: {{ image: image }} }}"));
    assert_eq!(of_feature, of_files);
    // Without `features`, the rows also have the paths.
    let with_paths = images(&format!("{{ url: {parquet}, format: parquet }}"));
    assert_ne!(with_paths, of_files);
}

#[test]
fn tables_with_deleted_files_are_rejected() {
    let scratch = Scratch::new();
    write(&scratch, "delta/_delta_log/00000000000000000000.json", "{}");
    write(&scratch, "delta/part-0.parquet", "x");
    let source = format!("{{ url: \"{}/*.parquet\", format: parquet }}", scratch.file("delta"));
    assert!(error(&scratch, &source).contains("is a Delta table"));
}
