//! Tests of the detection of tables.

use std::time::Duration;

use feedline_data::pipeline::Format;
use feedline_data::tenants::TenantReads;

use super::*;
use crate::testing::{dataset, listing_server, path, stores_at};

async fn error(url: &str) -> Option<String> {
    dataset(&[url], Format::Parquet, &[]).list().await.err().map(|error| error.to_string())
}

#[tokio::test]
async fn tables_are_rejected_unless_their_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for file in [
        "d/year=1/a.parquet",
        "d/_delta_log/0.json",
        "i/data/b.parquet",
        "i/metadata/v1.metadata.json",
        "p/c.parquet",
        "lake/a/x/e.parquet",
        "lake/a/_delta_log/0.json",
        "lake/b/data/f.parquet",
        "lake/b/metadata/v1.metadata.json",
    ] {
        std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        std::fs::write(root.join(file), "x").unwrap();
    }
    for url in [
        "d/",
        "d/year=1/",
        "d/year=1/*.parquet",
        "d/**/*.parquet",
        "{d,d}/year=1/*.parquet",
        "*/year=1/*.parquet",
    ] {
        let message = error(&path(root, url)).await.unwrap();
        assert!(
            message.contains("is a Delta table")
                && message.contains("file_uris()")
                && message.contains("deletion vectors"),
            "{message}"
        );
    }
    for url in ["lake/*/x/*.parquet", "lake/a/x/", "lake/{a,c}/x/*.parquet", "lake/"] {
        let found = error(&path(root, url)).await;
        // A directory that is neither a partition nor `data` is not part of a table above it.
        assert_eq!(
            found.is_some_and(|error| error.contains("is a Delta table")),
            url != "lake/a/x/" && !url.contains('{')
        );
    }
    for url in ["lake/*/data/*.parquet", "lake/{b,b}/data/*.parquet", "lake/b/data/f.parquet{,}"] {
        let message = error(&path(root, url)).await.unwrap();
        assert!(
            message.contains("is an Iceberg table") && message.contains("`delete_files`"),
            "{url}: {message}"
        );
    }
    for url in ["i/data/*.parquet", "i/data/"] {
        assert!(error(&path(root, url)).await.unwrap().contains("is an Iceberg table"), "{url}");
    }
    for url in ["d/year=1/a.parquet", "i/data/b.parquet", "p/", "p/*.parquet"] {
        assert_eq!(error(&path(root, url)).await, None, "{url}");
    }
}

fn candidates_of(url: &str) -> Candidates {
    let reads = ScopedStores::new(crate::Stores::new(Vec::new()), None, &TenantReads::default());
    candidates(&reads, &Location::parse(url).unwrap()).unwrap()
}

#[test]
fn the_root_of_a_table_is_above_its_partitions() {
    let of = |url: &str| -> Vec<String> { candidates_of(url).into_keys().map(|(_, rest)| rest).collect() };
    assert_eq!(of("s3://lake/t/data/a=1/b=2/*.parquet"), ["t", "t/data", "t/data/a=1", "t/data/a=1/b=2"]);
    assert_eq!(of("s3://lake/t/x/y/"), ["t/x/y"]);
    assert_eq!(of("s3://lake/*"), [""]);
    assert_eq!(of("s3://lake/{a,b}/{0..99}*.parquet"), ["a", "b"]);
    // The name of an existing directory is not a pattern.
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("[t]")).unwrap();
    assert_eq!(of(&path(directory.path(), "[t]/*.parquet")), [path(directory.path(), "[t]")]);
    assert_eq!(
        of(&path(directory.path(), "[u]/*.parquet")),
        [path(directory.path(), "").trim_end_matches('/')]
    );
}

#[test]
fn only_directories_before_the_first_pattern_are_listed() {
    let directory = |rest: &str| ("s3://lake".to_owned(), rest.to_owned());
    let expected = Candidates::from([(directory("t"), true), (directory("t/data"), true)]);
    assert_eq!(candidates_of("s3://lake/{t/data/*,t/*}.parquet"), expected);
    let expected = Candidates::from([(directory("t"), false), (directory("t/data"), true)]);
    assert_eq!(candidates_of("s3://lake/t/data/*.parquet"), expected);
}

/// Starts a store that lists `t/data/a.parquet`, and denies the listings of all prefixes except `allowed`. Returns its URL.
async fn store_with_rights_for(allowed: &'static [&'static str]) -> String {
    listing_server(move |request| {
        let (_, prefix) = request.split_once("prefix=").expect("only listings are requested");
        let prefix = prefix.split(['&', ' ']).next().unwrap_or_default().replace("%2F", "/");
        let object = "<Contents><Key>t/data/a.parquet</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                      <ETag>\"1\"</ETag><Size>1</Size></Contents>";
        match prefix.as_str() {
            prefix if !allowed.contains(&prefix) => {
                ("403 Forbidden", "<Error><Code>AccessDenied</Code></Error>".to_owned())
            }
            "t/data/" => ("200 OK", format!("<ListBucketResult>{object}</ListBucketResult>")),
            _ => ("200 OK", "<ListBucketResult></ListBucketResult>".to_owned()),
        }
    })
    .await
}

#[tokio::test]
async fn a_denied_listing_above_the_directory_of_the_source_is_ignored() {
    let list = async |allowed: &'static [&'static str]| {
        let stores = stores_at(&store_with_rights_for(allowed).await, Duration::ZERO);
        let reads = ScopedStores::new(stores, None, &TenantReads::default());
        list(&reads, &["s3://bucket/t/data/*.parquet".to_owned()]).await
    };
    let shards = list(&["t/data/", "t/data/_delta_log/", "t/data/metadata/"]).await.unwrap();
    assert_eq!(shards.len(), 1);
    let error = list(&["t/data/", "t/data/metadata/"]).await.unwrap_err();
    assert!(matches!(error, SourceError::Denied { .. }), "{error}");
    let reason = "whether the directory belongs to a Delta or Iceberg table";
    assert!(error.to_string().contains(reason), "{error}");
}
