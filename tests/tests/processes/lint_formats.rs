//! `feedline lint` accepts a sound dataset of each format, and `feedline preview` shows its rows, as a job reads them.

use std::fs;
use std::path::{Path, PathBuf};

use feedline_data::pipeline::Format;
use feedline_tests::Scratch;
use serde_json::Value;

/// A dataset of a format.
struct Dataset {
    /// The URLs and keys of the source, without `format`.
    source: String,
    /// A condition that selects a part of its rows. Its columns are those of the format.
    filter: &'static str,
    /// A part of the preview.
    shown: &'static str,
}

impl Dataset {
    fn new(source: impl Into<String>, filter: &'static str, shown: &'static str) -> Self {
        Self { source: source.into(), filter, shown }
    }
}

fn sources() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../worker/sources")
}

/// The URL of data that another library wrote.
fn written(path: &str) -> String {
    let path = sources().join("src/formats/testdata").join(path);
    format!("url: \"{}\"", path.to_str().expect("the path is text"))
}

fn write(scratch: &Scratch, name: &str, text: &str) {
    let file = scratch.path().join(name);
    fs::create_dir_all(file.parent().expect("the file is in a directory")).expect("a directory can be made");
    fs::write(file, text).expect("the scratch directory is writable");
}

/// Generated images in a format.
fn images(scratch: &Scratch, format: &str) {
    scratch.make_data("images", format, &["--format", format, "--rows", "12"]);
}

fn unpacked(packed: &Path, to: &Path) {
    let mut bytes = flate2::read::GzDecoder::new(fs::File::open(packed).expect("the file is committed"));
    let mut file = fs::File::create(to).expect("the scratch directory is writable");
    std::io::copy(&mut bytes, &mut file).expect("the file is complete");
}

/// Creates a dataset. `None` for a format that needs a server.
fn dataset(scratch: &Scratch, format: Format) -> Option<Dataset> {
    Some(match format {
        Format::TfRecord => {
            images(scratch, "tfrecord");
            let source =
                "url: tfrecord/*.tfrecord, features: { image: image/encoded, label: image/class/label }";
            Dataset::new(source, "label >= 0", "JPEG")
        }
        Format::WebDataset => {
            images(scratch, "webdataset");
            Dataset::new("url: webdataset/*.tar", "octet_length(jpg) > 0", "JPEG")
        }
        Format::Files => {
            images(scratch, "files");
            Dataset::new("url: files/", "octet_length(bytes) > 0", "JPEG")
        }
        Format::Parquet | Format::Arrow => {
            images(scratch, format.name());
            let source = format!("url: {0}/*.{0}", format.name());
            Dataset::new(source, "octet_length(image) > 0", "JPEG")
        }
        Format::Jsonl => {
            write(scratch, "jsonl/a.jsonl", "{\"n\": 1, \"t\": \"first\"}\n{\"n\": 2, \"t\": \"second\"}\n");
            Dataset::new("url: jsonl/", "n > 1", "second")
        }
        Format::Csv => {
            write(scratch, "csv/year=2023/a.csv", "n\n1\n2\n");
            write(scratch, "csv/year=2024/a.csv", "n\n3\n4\n");
            Dataset::new("url: csv/, partitions: hive", "year = 2024", "2024")
        }
        Format::Text => {
            write(scratch, "text/a.txt", "one\ntwo\nthree\n");
            Dataset::new("url: text/", "length(text) = 3", "two")
        }
        Format::Npy => Dataset::new(written("npz/fortran.npy"), "1 = 1", "data"),
        Format::Npz => Dataset::new(written("npz/stored.npz"), "i8 IS NOT NULL", "i8"),
        Format::Mds => Dataset::new(written("mds/hashed"), "id > 3", "id"),
        Format::LitData => Dataset::new(
            written("litdata/plain") + ", features: { id: \"0\", text: \"1\" }",
            "id > 3",
            "text",
        ),
        Format::ArrayRecord => {
            let packed = sources().join("src/formats/testdata/arrayrecord/examples.gz");
            unpacked(&packed, &scratch.path().join("examples.array_record"));
            Dataset::new("url: examples.array_record", "id > 3", "text")
        }
        Format::ImageFolder => {
            for image in ["cat/1.png", "cat/2.jpg", "dog/1.png"] {
                write(scratch, &format!("imagefolder/{image}"), image);
            }
            Dataset::new("url: imagefolder/", "label = 1", "dog")
        }
        Format::HuggingFace => {
            let saved = sources().join("testdata/layouts/dict");
            Dataset::new(
                format!("url: \"{}\", split: train", saved.to_str().expect("the path is text")),
                "1 = 1",
                "rows after the operators",
            )
        }
        // A graph is built by `feedline graph build`.
        Format::Kafka | Format::Graph => return None,
    })
}

fn pipeline(scratch: &Scratch, format: Format, source: &str, filter: &str) -> String {
    let name = format.name();
    let text = format!(
        "name: {name}\nsource: {{ {source}, format: {name} }}\noperators:\n  - filter: {{ where: \"{filter}\" }}\n  - batch: {{ size: 1 }}\n"
    );
    scratch.write(&format!("{name}.yaml"), &text)
}

#[test]
fn a_sound_dataset_of_each_format_is_clean_and_shown() {
    let scratch = Scratch::new();
    for &format in Format::ALL {
        let Some(dataset) = dataset(&scratch, format) else { continue };
        let name = format.name();
        let file = pipeline(&scratch, format, &dataset.source, dataset.filter);
        let call = scratch.call(&["lint", &file, "--strict", "--format", "json"]);
        assert_eq!(call.status, 0, "{name}: {}\n{}", call.stdout, call.stderr);
        let report = call.last_json();
        assert_eq!(report["findings"], Value::Array(Vec::new()), "{name}");
        let sampled = report["dataset"]["sampled_rows"].as_u64();
        assert!(sampled.is_some_and(|rows| rows > 0), "{name}: {report}");
        let call = scratch.call(&["preview", &file, "--rows", "8"]);
        assert_eq!(call.status, 0, "{name}: {}", call.stderr);
        assert!(call.stdout.contains(dataset.shown), "{name}: {}", call.stdout);
        assert!(!call.stdout.contains(": 0 rows after"), "{name}: {}", call.stdout);
    }
}

#[test]
fn directories_that_the_first_filter_excludes_are_not_sampled() {
    let scratch = Scratch::new();
    write(&scratch, "data/year=2023/a.jsonl", "not JSON\n");
    write(&scratch, "data/year=2024/a.jsonl", "{\"n\": 1}\n");
    let source = "url: data/, partitions: hive";
    let file = pipeline(&scratch, Format::Jsonl, source, "year = 2024");
    let call = scratch.call(&["lint", &file, "--strict", "--format", "json"]);
    assert_eq!(call.status, 0, "{}\n{}", call.stdout, call.stderr);
    assert_eq!(call.last_json()["dataset"]["shards"], 1);
    let call = scratch.call(&["preview", &file]);
    assert!(call.status == 0 && call.stdout.contains("2024"), "{}\n{}", call.stdout, call.stderr);
    let none = pipeline(&scratch, Format::Jsonl, source, "year = 1999");
    let call = scratch.call(&["lint", &none, "--format", "json"]);
    assert_eq!(call.status, 2, "{}", call.stderr);
    let report = call.last_json();
    let finding = &report["findings"][0];
    assert_eq!((&finding["check"], &finding["line"]), (&"no-rows".into(), &4.into()), "{report}");
    assert!(finding["message"].as_str().is_some_and(|text| text.contains("year=2023")), "{report}");
}

#[test]
fn a_table_that_a_job_rejects_is_an_error() {
    let scratch = Scratch::new();
    scratch.make_data("table", "lake/t", &["--format", "parquet", "--rows", "20"]);
    write(&scratch, "lake/t/_delta_log/00000000000000000000.json", "{}");
    for url in ["lake/t/", "lake/*/*.parquet", "\"lake/{t,t}/*.parquet\""] {
        let file = pipeline(&scratch, Format::Parquet, &format!("url: {url}"), "1 = 1");
        let call = scratch.call(&["lint", &file, "--format", "json"]);
        assert_eq!(call.status, 2, "{}", call.stderr);
        assert!(call.stdout.contains("is a Delta table"), "{url}: {}", call.stdout);
    }
}

#[test]
fn a_cluster_that_does_not_respond_is_one_finding() {
    let scratch = Scratch::new();
    let source = "url: \"kafka://127.0.0.1:1\", topics: [t]";
    let file = pipeline(&scratch, Format::Kafka, source, "1 = 1");
    let call = scratch.call(&["lint", &file, "--format", "json"]);
    assert_eq!(call.status, 2, "{}\n{}", call.stdout, call.stderr);
    let report = call.last_json();
    let findings = report["findings"].as_array().expect("the report lists findings");
    assert_eq!(findings.len(), 1, "{report}");
    let message = findings[0]["message"].as_str().expect("a finding has a message");
    assert!(message.contains("127.0.0.1:1") && !message.contains('\n'), "{message}");
}
