//! Tests of ImageFolder: the rows are compared with those of torchvision, which `testdata/make_layouts.py` wrote.

use std::path::Path;

use feedline_data::manifest::Shard;
use feedline_data::pipeline::Format;

use crate::testing::{dataset, lines, path};
use crate::{BlockRead, SourceError};

fn write(root: &Path, names: &[&str]) {
    for name in names {
        let file = root.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, name).unwrap();
    }
}

async fn shards(root: &str, features: &[(&str, &str)]) -> Result<Vec<Shard>, SourceError> {
    let dataset = dataset(&[root], Format::ImageFolder, features);
    let mut shards = Vec::new();
    for object in dataset.list().await? {
        let indexed = dataset.index_shard(&object).await?;
        shards.push(Shard { object, index: indexed.index, digest: indexed.digest });
    }
    Ok(shards)
}

async fn rows(root: &str, features: &[(&str, &str)]) -> Result<Vec<String>, SourceError> {
    let dataset = dataset(&[root], Format::ImageFolder, features);
    let mut rows = Vec::new();
    for shard in shards(root, features).await? {
        let schema = shard.index.schema.as_ref().unwrap();
        let read = BlockRead {
            shard: &shard.object,
            block: &shard.index.blocks[0],
            schema,
            rows: None,
            index: None,
        };
        rows.extend(lines(&dataset.read_block(&read).await?.batch));
    }
    Ok(rows)
}

#[tokio::test]
async fn rows_are_equal_to_those_of_torchvision() {
    let expected = include_str!("../../../testdata/layouts/imagefolder.json");
    let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let directory = tempfile::tempdir().unwrap();
    let files: Vec<String> = expected["files"].as_array().unwrap().iter().map(text).collect();
    write(directory.path(), &files.iter().map(String::as_str).collect::<Vec<_>>());
    let classes: Vec<String> = expected["classes"].as_array().unwrap().iter().map(text).collect();
    let samples = expected["samples"].as_array().unwrap();
    let samples: Vec<String> = samples
        .iter()
        .map(|sample| {
            let label = sample[1].as_i64().unwrap();
            format!("{}|{label}|{}", text(&sample[0]), classes[label as usize])
        })
        .collect();
    let features = [("a", "bytes"), ("b", "label"), ("c", "class")];
    assert_eq!(rows(directory.path().to_str().unwrap(), &features).await.unwrap(), samples);
}

#[tokio::test]
async fn a_directory_that_is_listed_twice_is_read_twice() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &["[d]/cat/1.jpg", "[d]/cat/sub/2.jpg", "[d]/dog/3.jpg"]);
    let root = path(directory.path(), "[d]");
    let names = async |urls: &[&str]| {
        let listed =
            dataset(urls, Format::ImageFolder, &[]).list().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(listed.iter().map(|shard| shard.url.rsplit('/').next().unwrap().to_owned()).collect())
    };
    let once: Vec<String> = names(&[&root]).await.unwrap();
    assert_eq!(once, ["1.jpg", "2.jpg", "3.jpg"]);
    let twice: Vec<String> = names(&[&root, &format!("{root}/")]).await.unwrap();
    assert_eq!(twice, [once.clone(), once].concat());
    let error = names(&[&root, &format!("{root}/cat")]).await.unwrap_err();
    assert!(error.contains("select it: remove one of them"), "{error}");
}

#[tokio::test]
async fn entries_that_cannot_be_read_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &["cat/1.jpg"]);
    std::os::unix::fs::symlink("gone", directory.path().join("dog")).unwrap();
    let root = directory.path().to_str().unwrap();
    let error = rows(root, &[]).await.unwrap_err().to_string();
    assert!(error.contains("the symbolic link leads to `gone`"), "{error}");
    std::fs::remove_file(directory.path().join("dog")).unwrap();
    std::fs::write(directory.path().join("cat/line\nend.jpg"), "x").unwrap();
    let error = rows(root, &[]).await.unwrap_err().to_string();
    assert!(error.contains("contains a control character"), "{error}");
}

#[tokio::test]
async fn all_columns_are_read_without_features() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &["cat/1.jpg", "a dog/deep/2.PNG"]);
    let root = directory.path().to_str().unwrap();
    let shards = shards(root, &[]).await.unwrap();
    let columns: Vec<&str> = shards[0].index.schema.as_ref().unwrap().names().collect();
    assert_eq!(columns, ["bytes", "path", "label", "class"]);
    let at = format!("file://{root}");
    assert_eq!(
        rows(root, &[]).await.unwrap(),
        [
            format!("a dog/deep/2.PNG|{at}/a%20dog/deep/2.PNG|0|a dog"),
            format!("cat/1.jpg|{at}/cat/1.jpg|1|cat")
        ]
    );
    assert_eq!(rows(root, &[("y", "label")]).await.unwrap(), ["0", "1"]);
}

#[tokio::test]
async fn directories_without_images_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap().to_owned();
    write(directory.path(), &["x.jpg"]);
    let error = rows(&root, &[]).await.unwrap_err().to_string();
    assert!(error.contains("has no directories of classes"), "{error}");
    write(directory.path(), &["a/1.jpg", "b/notes.txt", ".cache/x"]);
    std::fs::create_dir(directory.path().join("c")).unwrap();
    let error = rows(&root, &[]).await.unwrap_err().to_string();
    assert!(error.contains("the class directories `b`, `c` contain no images (.jpg,"), "{error}");
    let error = rows(&format!("{root}/*"), &[]).await.unwrap_err().to_string();
    assert!(error.contains("without a pattern"), "{error}");
    let error = rows(&path(directory.path(), "gone"), &[]).await.unwrap_err().to_string();
    assert!(error.contains("does not exist"), "{error}");
}
