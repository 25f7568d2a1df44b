//! Tests of listing.

use feedline_core::pipeline::Format;

use crate::SourceError;
use crate::testing::{dataset, path};

async fn names(urls: &[String]) -> Result<Vec<String>, SourceError> {
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let shards = dataset(&urls, Format::Files, &[]).list().await?;
    Ok(shards.into_iter().map(|shard| shard.url.rsplit('/').next().unwrap().to_owned()).collect())
}

fn tree() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("sub")).unwrap();
    for name in
        ["b-01.tar", "b-00.tar", "b-02.tar", "x y#z?.txt", "[q].txt", "_SUCCESS", ".hidden", "sub/c.tar"]
    {
        std::fs::write(directory.path().join(name), name).unwrap();
    }
    directory
}

#[tokio::test]
async fn globs_prefixes_lists_and_braces() {
    let tree = tree();
    let at = |name: &str| path(tree.path(), name);
    assert_eq!(names(&[at("*.tar")]).await.unwrap(), ["b-00.tar", "b-01.tar", "b-02.tar"]);
    assert_eq!(names(&[at("**/*.tar")]).await.unwrap(), ["b-00.tar", "b-01.tar", "b-02.tar", "c.tar"]);
    assert_eq!(names(&[at("b-{01..02}.tar")]).await.unwrap(), ["b-01.tar", "b-02.tar"]);
    assert_eq!(names(&[at("b-02.tar"), at("b-0[02].tar")]).await.unwrap(), ["b-02.tar", "b-00.tar"]);
    assert_eq!(names(&[format!("file://{}", at("b-0?.tar"))]).await.unwrap().len(), 3);
    assert_eq!(names(&[at("[q].txt")]).await.unwrap().len(), 1);
    assert_eq!(names(&[at("sub/")]).await.unwrap(), ["c.tar"]);
    assert_eq!(names(&[at("sub")]).await.unwrap(), ["c.tar"]);
    assert_eq!(names(&[format!("{}/", tree.path().display())]).await.unwrap().len(), 6);
}

#[tokio::test]
async fn odd_names_are_listed_and_read() {
    let tree = tree();
    let fixture = dataset(&[path(tree.path(), "x*").as_str()], Format::Files, &[("b", "bytes")]);
    let shard = fixture.list().await.unwrap().remove(0);
    let index = fixture.index_shard(&shard).await.unwrap();
    let schema = index.schema.unwrap();
    let read = crate::BlockRead { shard: &shard, block: &index.blocks[0], schema: &schema, rows: None };
    let rows = fixture.read_block(&read).await.unwrap();
    assert_eq!(crate::testing::lines(&rows.batch), ["x y#z?.txt"]);
    assert_eq!(crate::Stores::new(Vec::new()).get(&shard.url).await.unwrap(), "x y#z?.txt");
}

#[tokio::test]
async fn what_is_missing_is_named_with_the_fix() {
    let tree = tree();
    let at = |name: &str| path(tree.path(), name);
    for (url, fix) in [
        (at("gone.tar"), "check the path"),
        (at("gone/"), "check the path"),
        (at("*.gone"), "check the pattern"),
        (at("gone/*.tar"), "check the pattern"),
        (at("b-{00..09}.tar"), "check the path"),
        ("https://host/*.tar".to_owned(), "{000..099}"),
        ("ftp://host/x".to_owned(), "use file, s3"),
    ] {
        let error = names(std::slice::from_ref(&url)).await.unwrap_err();
        assert!(error.to_string().contains(fix), "{url}: {error}");
        assert!(!error.is_retryable());
    }
}
