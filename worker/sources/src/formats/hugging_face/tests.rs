//! Tests of Hugging Face datasets: the rows are compared with those that the library `datasets` reads. `testdata/make_layouts.py`
//! wrote the files and the expected rows.

use std::io::Write;
use std::path::{Path, PathBuf};

use feedline_data::pipeline::Source;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::testing::{lines, write_settled};
use crate::{BlockRead, Dataset, SourceError, Stores};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/layouts")
}

/// The columns and rows that `datasets` read.
fn expected(pointer: &str) -> (Vec<String>, Vec<String>) {
    let all: Value =
        serde_json::from_str(include_str!("../../../testdata/layouts/huggingface.json")).unwrap();
    let entry = all.pointer(pointer).unwrap();
    let texts = |key: &str| -> Vec<String> {
        entry[key].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    (texts("columns"), texts("rows"))
}

/// The columns and rows of a source.
async fn rows(source: Source) -> Result<(Vec<String>, Vec<String>), SourceError> {
    let dataset = Dataset::new(source, Stores::new(Vec::new()))?;
    let (mut columns, mut rows) = (Vec::new(), Vec::new());
    for shard in dataset.list().await? {
        let index = dataset.index_shard(&shard).await?.index;
        assert!(index.defects.is_empty());
        let Some(schema) = &index.schema else { continue };
        columns = schema.names().map(str::to_owned).collect();
        for block in &index.blocks {
            let read = BlockRead { shard: &shard, block, schema, rows: None, index: None };
            let read = dataset.read_block(&read).await?;
            assert!(read.failures.is_empty());
            rows.extend(lines(&read.batch));
        }
    }
    Ok((columns, rows))
}

fn source(path: impl AsRef<Path>) -> Source {
    Source::huggingface(path.as_ref().to_str().unwrap())
}

async fn error(source: Source) -> String {
    rows(source).await.unwrap_err().to_string()
}

#[tokio::test]
async fn saved_datasets_have_the_rows_of_datasets() {
    assert_eq!(rows(source(data().join("saved"))).await.unwrap(), expected("/saved"));
    for split in ["train", "test"] {
        let found = rows(source(data().join("dict")).split(split)).await.unwrap();
        assert_eq!(found, expected(&format!("/dict/{split}")));
        let found = rows(source(data().join("cache")).split(split)).await.unwrap();
        assert_eq!(found, expected(&format!("/cache/{split}")));
    }
}

#[tokio::test]
async fn features_of_parquet_and_arrow_files_apply_to_every_format() {
    let parquet = data().join("features.parquet");
    assert_eq!(rows(source(&parquet)).await.unwrap(), expected("/parquet"));
    assert_eq!(rows(Source::parquet(parquet.to_str().unwrap())).await.unwrap(), expected("/parquet"));
    let arrow = data().join("saved/*.arrow");
    assert_eq!(rows(Source::arrow(arrow.to_str().unwrap())).await.unwrap(), expected("/saved"));
}

#[tokio::test]
async fn the_content_of_a_parquet_file_decides_whether_it_is_compressed() {
    let bytes = std::fs::read(data().join("features.parquet")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.parquet.gz");
    let sources = || [source(directory.path()), source(&file), Source::parquet(file.to_str().unwrap())];
    write_settled(&file, &bytes);
    for source in sources() {
        assert_eq!(rows(source).await.unwrap(), expected("/parquet"));
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&bytes).unwrap();
    write_settled(&file, &encoder.finish().unwrap());
    for source in sources() {
        let error = error(source).await;
        assert!(
            error.contains("x.parquet.gz")
                && error.ends_with(
                    "it is a gzip file, and a Parquet file that is compressed as a whole cannot be read: decompress it, and compress its \
                     pages instead, or check `source.format`"
                ),
            "{error}"
        );
    }
    let file = directory.path().join("rows.bin");
    write_settled(&file, &bytes);
    assert_eq!(rows(Source::parquet(file.to_str().unwrap())).await.unwrap(), expected("/parquet"));
}

#[tokio::test]
async fn nested_features_have_the_rows_of_datasets() {
    assert_eq!(rows(source(data().join("nested"))).await.unwrap(), expected("/nested"));
    let parquet = data().join("nested.parquet");
    assert_eq!(rows(source(&parquet)).await.unwrap(), expected("/nested_parquet"));
    for path in [data().join("nested"), parquet] {
        let names = source(path).feature("labels", "labels.name").feature("steps", "steps.label.name");
        assert_eq!(rows(names).await.unwrap(), expected("/names"));
    }
}

#[tokio::test]
async fn class_names_and_bytes_are_read_on_request() {
    let source = source(data().join("saved"))
        .feature("a", "label.name")
        .feature("b", "audio.bytes")
        .feature("c", "inner.y.name")
        .feature("d", "label");
    let (columns, rows) = rows(source).await.unwrap();
    assert_eq!(columns, ["a", "b", "c", "d"]);
    assert_eq!(
        rows,
        ["no|audio 0|a|0", "yes|audio 1|b|1", "null|audio 2|c|-1", "yes|audio 3|a|1", "no|audio 4|b|0"]
    );
}

#[tokio::test]
async fn the_choice_of_a_split_is_explained() {
    let of = |name: &str| source(data().join(name));
    assert!(
        error(of("dict")).await.contains("more than one split: set `source.split` to one of `train`, `test`")
    );
    assert!(error(of("dict").split("dev")).await.contains("no split `dev`: set `source.split` to one of"));
    assert!(error(of("saved").config("en")).await.contains("remove `source.config`"));
    assert!(error(of("cache").config("en").split("train")).await.contains("no configuration `en`"));
    assert!(error(of("saved/*.arrow").split("train")).await.contains("select files of a directory"));
    assert_eq!(rows(of("cache").config("default").split("test")).await.unwrap(), expected("/cache/test"));
}

fn write(root: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let file = root.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
}

const CARD: &str = "---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/*.jsonl\n  - split: test\n    \
                    path: en-test.jsonl\n- config_name: de\n  data_dir: de\n- config_name: bad\n  data_files: none/*\n---\n";

#[tokio::test]
async fn configurations_and_splits_of_a_repository_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let line = |text: &str| format!("{{\"text\": \"{text}\"}}\n");
    write(
        directory.path(),
        &[
            ("README.md", CARD),
            ("en/b.jsonl", &line("b")),
            ("en/a.jsonl", &line("a")),
            ("en-test.jsonl", &line("t")),
            ("de/train/x.jsonl", &line("x")),
            ("de/val.jsonl", &line("v")),
            ("de/train/notes.md", "no data"),
        ],
    );
    let of = |config: &str| source(directory.path()).config(config);
    let texts = |source| async move { rows(source).await.unwrap().1 };
    assert_eq!(texts(of("en").split("train")).await, ["a", "b"]);
    assert_eq!(texts(of("en").split("test")).await, ["t"]);
    assert_eq!(texts(of("de")).await, ["x"], "the directory train/ comes before names");
    assert!(error(source(directory.path())).await.contains("one of `en`, `de`, `bad`"));
    assert!(error(of("fr")).await.contains("no configuration `fr`"));
    assert!(error(of("bad")).await.contains("the pattern `none/*` of README.md matches no files"));
    assert!(error(of("en")).await.contains("`train`, `test`"));
    write(directory.path(), &[("README.md", "---\nconfigs: [\n---\n")]);
    assert!(error(source(directory.path())).await.contains("the YAML at the start of README.md is invalid"));
    std::fs::remove_file(directory.path().join("README.md")).unwrap();
    assert!(error(of("en")).await.contains("defines no configurations: remove `source.config`"));
    let other = tempfile::tempdir().unwrap();
    write(other.path(), &[("README.md", ""), ("x.py", "")]);
    assert!(error(source(other.path())).await.contains("has no files with the extensions .parquet"));
}

/// The paths of the shards of a source, relative to the directory of the source.
async fn paths(root: &Path, source: Source) -> Result<Vec<String>, String> {
    let dataset = Dataset::new(source, Stores::new(Vec::new())).map_err(|error| error.to_string())?;
    let shards = dataset.list().await.map_err(|error| error.to_string())?;
    let root = root.to_str().unwrap();
    let relative = |url: &str| url.rsplit_once(root).unwrap().1.trim_start_matches('/').to_owned();
    Ok(shards.iter().map(|shard| relative(&shard.url)).collect())
}

#[tokio::test]
async fn configurations_and_splits_are_those_that_datasets_reports() {
    let cases: Value = serde_json::from_str(include_str!("../../../testdata/layouts/splits.json")).unwrap();
    for (name, case) in cases.as_object().unwrap() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, &[("README.md", case["readme"].as_str().unwrap())]);
        for file in case["files"].as_array().unwrap() {
            write(root, &[(file.as_str().unwrap(), "v\n1\n")]);
        }
        for (config, splits) in case["configs"].as_object().unwrap() {
            let of_config = || source(root).config(config.as_str());
            let splits = splits.as_object().unwrap();
            for (split, files) in splits {
                let found = paths(root, of_config().split(split.as_str())).await.unwrap();
                assert_eq!(json!(found), *files, "{name}: {config}, {split}");
                if case["default"] == json!(config) {
                    let found = paths(root, source(root).split(split.as_str())).await.unwrap();
                    assert_eq!(json!(found), *files, "{name}: {split} of the default");
                }
            }
            let error = paths(root, of_config().split("absent")).await.unwrap_err();
            let mut listed: Vec<&str> = error.rsplit_once("one of ").unwrap().1.split(", ").collect();
            listed.sort_unstable();
            let mut expected: Vec<String> = splits.keys().map(|split| format!("`{split}`")).collect();
            expected.sort_unstable();
            assert_eq!(listed, expected, "{name}: {config}");
        }
        if case["default"].is_null() {
            let error = paths(root, source(root)).await.unwrap_err();
            assert!(error.contains("more than one configuration"), "{name}: {error}");
        }
    }
}

#[tokio::test]
async fn damaged_directories_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let files = "{\"_data_files\": [{\"filename\": \"gone.arrow\"}]}";
    for (state, reason) in [
        ("{", "`state.json` is not valid JSON"),
        ("{}", "`state.json` lists no files"),
        (files, "names the file `gone.arrow`, which does not exist"),
        ("{\"_data_files\": [], \"_indices_files\": [{}]}", "call `flatten_indices`"),
        ("{\"_data_files\": [{\"filename\": \"../x\"}]}", "names the file `../x`"),
    ] {
        write(root, &[("state.json", state)]);
        let error = error(source(root)).await;
        assert!(error.contains(reason), "{error}");
    }
    std::fs::remove_file(root.join("state.json")).unwrap();
    write(root, &[("dataset_dict.json", "{\"splits\": [\"train\"]}")]);
    assert!(error(source(root)).await.contains("`train/state.json` does not exist"));
}

#[tokio::test]
async fn files_with_an_array_of_objects_are_read() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("train.json"), "[\n  {\"a\": 1},\n  {\"a\": 2}\n]\n").unwrap();
    let (columns, rows) = rows(source(directory.path())).await.unwrap();
    assert_eq!((columns, rows), (vec!["a".to_owned()], vec!["1".to_owned(), "2".to_owned()]));
}

#[tokio::test]
async fn a_repository_with_the_log_of_a_delta_table_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    for file in ["train/a.parquet", "train/_delta_log/0.jsonl"] {
        let file = directory.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "x").unwrap();
    }
    assert!(error(source(directory.path())).await.contains("is a Delta table"));
}
