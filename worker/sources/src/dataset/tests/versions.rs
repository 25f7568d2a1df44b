//! Tests that no format reads another version of a shard than the listed one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use feedline_data::manifest::{Block, Shard};
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::samples;
use crate::{BlockRead, BlockRows, Dataset, SourceError, Stores};

async fn read(
    dataset: &Dataset,
    shard: &Shard,
    block: &Block,
) -> std::result::Result<BlockRows, SourceError> {
    let schema = shard.index.schema.as_ref().expect("the shard has rows");
    let index = Some(&shard.index);
    dataset.read_block(&BlockRead { shard: &shard.object, block, schema, rows: None, index }).await
}

/// Replaces a file by another one of the same size.
fn replace(url: &str) {
    let path = Path::new(url.strip_prefix("file://").expect("a local file"));
    let mut bytes = std::fs::read(path).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 1);
    let other = path.with_extension("new");
    std::fs::write(&other, bytes).unwrap();
    std::fs::rename(other, path).unwrap();
}

#[tokio::test]
async fn no_format_reads_rows_of_a_replaced_file() {
    for sample in samples::all() {
        let dataset = sample.local();
        let shard = sample.index(&dataset).await;
        let first = read(&dataset, &shard, &shard.index.blocks[0]).await;
        assert!(first.is_ok_and(|rows| rows.batch.num_rows() > 0), "{}", sample.name);
        let indexing = sample.local();
        let shard = sample.index(&indexing).await;
        replace(&shard.object.url);
        // Another worker has cached nothing of the shard.
        for dataset in [indexing, sample.local()] {
            for block in &shard.index.blocks {
                let error = read(&dataset, &shard, block).await.unwrap_err();
                assert!(matches!(error, SourceError::ShardChanged { .. }), "{}: {error}", sample.name);
            }
        }
    }
}

/// A store in memory that records the requests for bytes.
#[derive(Debug)]
struct RecordingStore {
    inner: InMemory,
    /// The key and the value of `If-Match` of each request.
    requests: Mutex<Vec<(Key, Option<String>)>>,
}

impl fmt::Display for RecordingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordingStore")
    }
}

#[async_trait]
impl ObjectStore for RecordingStore {
    async fn put_opts(&self, key: &Key, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Key,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Key, options: GetOptions) -> Result<GetResult> {
        if !options.head {
            self.requests.lock().unwrap().push((key.clone(), options.if_match.clone()));
        }
        self.inner.get_opts(key, options).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Key>>) -> BoxStream<'static, Result<Key>> {
        self.inner.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Key, to: &Key, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// The files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// A store with the files of a directory below `data`.
async fn store_of(directory: &Path) -> Arc<RecordingStore> {
    let inner = InMemory::new();
    for file in files(directory) {
        let path = file.strip_prefix(directory).unwrap().to_str().unwrap();
        let bytes = std::fs::read(&file).unwrap();
        inner.put(&Key::from(format!("data/{path}")), bytes.into()).await.unwrap();
    }
    Arc::new(RecordingStore { inner, requests: Mutex::default() })
}

#[tokio::test]
async fn every_request_for_bytes_names_the_listed_version() {
    for sample in samples::all() {
        let name = sample.name;
        let store = store_of(sample.directory.path()).await;
        let stores = Stores::new(Vec::new());
        stores.insert("mem://host", Arc::clone(&store) as Arc<dyn ObjectStore>);
        let dataset = sample.dataset("mem://host/data", Arc::clone(&stores));
        let shard = sample.index(&dataset).await;
        // Another worker has cached nothing of the shard.
        let reading = sample.dataset("mem://host/data", stores);
        for block in &shard.index.blocks {
            read(&reading, &shard, block).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let requests = store.requests.lock().unwrap().clone();
        let key = shard.object.url.strip_prefix("mem://host/").expect("the URL of an object of the store");
        let key = Key::from(key);
        assert!(requests.iter().any(|(requested, _)| *requested == key), "{name}: {requests:?}");
        for (requested, if_match) in requests {
            let version = store.inner.head(&requested).await.unwrap().e_tag;
            assert!(version.is_some(), "{name}: an object in memory has an entity tag");
            assert_eq!(if_match, version, "{name}: {requested}");
        }
    }
}
