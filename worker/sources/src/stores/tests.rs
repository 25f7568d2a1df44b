//! Tests of stores: the interface of the caches, and the restrictions of pipelines.

use std::collections::BTreeMap;

use feedline_access::ProtectedFiles;
use feedline_data::pipeline::Source;
use feedline_data::urls::UrlPolicy;
use object_store::memory::InMemory;

use super::*;
use crate::{Credential, Dataset};

async fn listed(stores: &Stores, folder: &str) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    let found = |name: &str, size| all.push((name.to_owned(), size));
    stores.list_folder(folder, found).await.expect("it can be listed");
    all.sort();
    all
}

#[tokio::test]
async fn objects_are_written_listed_and_read_in_parts() {
    let folder = tempfile::tempdir().expect("a directory");
    let local = folder.path().to_str().expect("UTF-8").to_owned();
    let stores = Stores::new(Vec::new());
    stores.insert("mem://host", Arc::new(InMemory::new()));
    for base in [local.clone(), format!("file://{local}/b c"), "mem://host".into(), "mem://host/x".into()] {
        assert!(listed(&stores, &format!("{base}/new/")).await.is_empty());
        let object = Bytes::from((0..=255).collect::<Vec<u8>>());
        stores.put(&format!("{base}/new/sub/one"), object.clone()).await.expect("it can be written");
        stores.put(&format!("{base}/newer"), object.clone()).await.expect("it can be written");
        assert_eq!(listed(&stores, &format!("{base}/new/")).await, [("sub/one".to_owned(), 256)]);
        let url = format!("{base}/new/sub/one");
        let parts = stores.get_ranges(&url, &[200..256, 3..5]).await.expect("it can be read");
        assert_eq!(parts, [object.slice(200..256), object.slice(3..5)]);
        stores.get_ranges(&url, &[0..5, 250..257]).await.expect_err("it is shorter");
        let gone = stores.get_ranges(&format!("{base}/gone"), std::slice::from_ref(&(0..1))).await;
        assert!(matches!(gone, Err(SourceError::NotFound { .. })), "{gone:?}");
    }
}

#[tokio::test]
async fn errors_name_the_reason_that_a_folder_cannot_be_listed() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("file");
    std::fs::write(&file, b"").expect("a file");
    let stores = Stores::new(Vec::new());
    let file = file.to_str().expect("UTF-8");
    for (url, reason) in [("http://host/x/", "cannot be listed"), (file, "not a directory")] {
        let error = stores.list_folder(url, |_, _| {}).await.expect_err("it is not a directory").to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// A directory that pipelines may read, a directory that they may not read, and links between them.
struct Folders {
    root: tempfile::TempDir,
    stores: Arc<Stores>,
}

impl Folders {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for (folder, file) in [("in", "a.txt"), ("in", "b.txt"), ("out", "secret.txt"), ("in2", "c.txt")] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
            std::fs::write(root.path().join(folder).join(file), "text\n").unwrap();
        }
        let policy = UrlPolicy::new([root.path().join("in").to_str().unwrap()]).unwrap();
        Self { stores: Stores::with_access(ObjectAccess::default().with_allowed_urls(policy)), root }
    }

    fn at(&self, name: &str) -> String {
        self.root.path().join(name).to_str().unwrap().to_owned()
    }

    fn link(&self, to: &str, at: &str) {
        std::os::unix::fs::symlink(self.at(to), self.at(at)).unwrap();
    }

    async fn list(&self, url: &str) -> Result<usize, SourceError> {
        let mut source = Source::text("/x");
        source.url = vec![url.to_owned()];
        Ok(Dataset::new(source, Arc::clone(&self.stores))?.list().await?.len())
    }
}

fn is_refused<T: std::fmt::Debug>(result: Result<T, SourceError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, SourceError::Rejected { .. }) && !error.is_retryable(), "{error}");
}

#[tokio::test]
async fn only_allowed_folders_are_listed_and_read() {
    let folders = Folders::new();
    for (url, count) in [("in/", 2), ("in/*.txt", 2), ("in", 2), ("out/../in/a.txt", 1)] {
        assert_eq!(folders.list(&folders.at(url)).await.unwrap(), count, "{url}");
    }
    assert_eq!(folders.list(&format!("file://{}", folders.at("in/%61.txt"))).await.unwrap(), 1);
    for url in ["out/", "out/*.txt", "in2/c.txt", "in/../out/secret.txt", "in*/*.txt", "*"] {
        is_refused(folders.list(&folders.at(url)).await);
    }
    is_refused(folders.list(&format!("file://{}", folders.at("in/%2e%2e/out/secret.txt"))).await);
    is_refused(folders.list("relative.txt").await);
    is_refused(folders.list("s3://bucket/x").await);
    is_refused(folders.stores.get(&folders.at("out/secret.txt")).await);
    assert_eq!(folders.stores.get(&folders.at("in/a.txt")).await.unwrap(), "text\n");
}

#[tokio::test]
async fn links_out_of_an_allowed_folder_are_not_followed() {
    let folders = Folders::new();
    folders.link("out/secret.txt", "in/link.txt");
    is_refused(folders.list(&folders.at("in/link.txt")).await);
    is_refused(folders.list(&folders.at("in/*.txt")).await);
    is_refused(folders.list(&folders.at("in/")).await);
    is_refused(folders.stores.get(&folders.at("in/link.txt")).await);
    std::fs::remove_file(folders.root.path().join("in/link.txt")).unwrap();
    folders.link("out", "in/away");
    is_refused(folders.list(&folders.at("in/away/*.txt")).await);
    is_refused(folders.list(&folders.at("in/away/../out/secret.txt")).await);
    std::fs::remove_file(folders.root.path().join("in/away")).unwrap();
    folders.link("in/a.txt", "in/same.txt");
    assert_eq!(folders.list(&folders.at("in/*.txt")).await.unwrap(), 3);
}

#[tokio::test]
async fn a_shard_that_another_process_listed_is_checked_again() {
    let folders = Folders::new();
    let everything = Stores::new(Vec::new());
    let source = Source::text(folders.at("out/secret.txt"));
    let listed = Dataset::new(source, everything).unwrap().list().await.unwrap().remove(0);
    let dataset = Dataset::new(Source::text(folders.at("in/a.txt")), Arc::clone(&folders.stores)).unwrap();
    is_refused(dataset.index_shard(&listed).await);
}

#[tokio::test]
async fn a_folder_that_is_replaced_by_a_link_during_a_job_is_not_read() {
    let folders = Folders::new();
    std::fs::create_dir(folders.root.path().join("in/sub")).unwrap();
    std::fs::write(folders.root.path().join("in/sub/x.txt"), "text\n").unwrap();
    folders.link("in/sub", "in/near");
    let dataset =
        Dataset::new(Source::text(folders.at("in/near/x.txt")), Arc::clone(&folders.stores)).unwrap();
    let shard = dataset.list().await.unwrap().remove(0);
    dataset.index_shard(&shard).await.unwrap();
    assert_eq!(folders.stores.get(&folders.at("in/near/x.txt")).await.unwrap(), "text\n");
    // The target of the link also has the listed version.
    std::fs::hard_link(folders.at("in/sub/x.txt"), folders.at("out/x.txt")).unwrap();
    std::fs::rename(folders.at("in/sub"), folders.at("in/old")).unwrap();
    folders.link("out", "in/sub");
    is_refused(dataset.index_shard(&shard).await);
    is_refused(folders.stores.get(&folders.at("in/near/x.txt")).await);
}

#[tokio::test]
async fn caches_are_not_restricted_by_the_permissions_of_pipelines() {
    let folders = Folders::new();
    let url = folders.at("cache/x");
    folders.stores.put(&url, Bytes::from_static(b"row")).await.unwrap();
    assert_eq!(
        folders.stores.get_ranges(&url, std::slice::from_ref(&(0..3))).await.unwrap(),
        [Bytes::from_static(b"row")]
    );
}

#[tokio::test]
async fn each_credential_has_its_own_client_and_is_not_shown() {
    let option = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let options = [
        option("aws_access_key_id", "HUSHID"),
        option("aws_secret_access_key", "HUSHKEY"),
        option("aws_allow_http", "HUSH-NO-TRUTH"),
    ];
    let urls = UrlPolicy::new(["s3://bucket/a"]).unwrap();
    let wrong = Credential::new(options.clone(), urls.clone()).unwrap();
    let right = Credential::new(options[..2].to_vec(), urls).unwrap();
    let credentials = BTreeMap::from([("right".to_owned(), right), ("wrong".to_owned(), wrong)]);
    let stores = Stores::with_access(ObjectAccess::default().with_credentials(credentials));
    let open = |url: &str, name: &str| {
        let source = Source::text(url).credentials(name);
        let dataset = Dataset::new(source, Arc::clone(&stores))?;
        assert!(!format!("{dataset:?}").contains("HUSH"));
        let reads = ScopedStores::new(Arc::clone(&stores), Some(name.to_owned()), &TenantReads::default());
        reads.open(&Location::parse(url)?).map(|_| ())
    };
    assert_eq!(open("s3://bucket/a/x", "right"), Ok(()));
    assert!(!format!("{stores:?}").contains("HUSH"));
    let message = open("s3://bucket/b/x", "right").unwrap_err().to_string();
    assert!(message.contains("are not valid for `s3://bucket/b/x`, only for `s3://bucket/a`"), "{message}");
    let message = open("s3://bucket/a/x", "rihgt").unwrap_err().to_string();
    assert!(message.contains("did you mean `right`?"), "{message}");
    let message = open("s3://bucket/a/x", "wrong").unwrap_err().to_string();
    assert!(!message.contains("HUSH"), "{message}");
}

#[tokio::test]
async fn a_file_of_an_operator_that_is_too_large_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    std::fs::File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    let error = Stores::new(Vec::new()).get(path.to_str().unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("the limit for operator files"), "{error}");
}

#[tokio::test]
async fn files_of_operators_whose_total_size_is_too_large_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: u64| {
        let path = folder.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let stores = Stores::new(Vec::new());
    let small = [file("a.json", 3), file("b.json", 5)];
    let read = stores.files(small.clone().into(), &TenantReads::default()).await.unwrap();
    assert_eq!(small.map(|url| read[&url].len()), [3, 5]);
    // Each file is small enough.
    let large = ["c.json", "d.json", "e.json"].map(|name| file(name, MAX_FILE_BYTES - 1));
    let error = stores.files(large.clone().into(), &TenantReads::default()).await.unwrap_err().to_string();
    assert!(error.contains("e.json") && error.contains("the limit is 536870912"), "{error}");
}

#[tokio::test]
async fn the_permissions_of_tenant_and_worker_both_apply() {
    let folders = Folders::new();
    std::fs::create_dir(folders.root.path().join("in/own")).unwrap();
    std::fs::write(folders.root.path().join("in/own/x.txt"), "text\n").unwrap();
    let tenant = |urls: &[String]| TenantReads {
        urls: UrlPolicy::new(urls).unwrap(),
        credentials: Some(vec!["own".to_owned()]),
    };
    let own = tenant(&[folders.at("in/own"), folders.at("out")]);
    let list = async |url: String| {
        let dataset = Dataset::of_tenant(Source::text(url), Arc::clone(&folders.stores), &own)?;
        dataset.list().await.map(|shards| shards.len())
    };
    assert_eq!(list(folders.at("in/own/*.txt")).await.unwrap(), 1);
    // The role may read the first directory, and the tenant may read the second.
    is_refused(list(folders.at("in/a.txt")).await);
    is_refused(list(folders.at("out/secret.txt")).await);
    is_refused(folders.stores.get_for(&folders.at("in/a.txt"), &own).await);
    assert_eq!(folders.stores.get_for(&folders.at("in/own/x.txt"), &own).await.unwrap(), "text\n");
    // A link to a file that the role may read.
    folders.link("in/a.txt", "in/own/link.txt");
    assert_eq!(folders.list(&folders.at("in/own/*.txt")).await.unwrap(), 2);
    let message = list(folders.at("in/own/*.txt")).await.unwrap_err().to_string();
    assert!(
        message.contains("contains a symbolic link") && message.contains("the tenant's `urls`"),
        "{message}"
    );
    let named = Source::text(folders.at("in/own/x.txt")).credentials("other");
    let message = Dataset::of_tenant(named, Arc::clone(&folders.stores), &own).unwrap_err().to_string();
    assert!(message.contains("may not use the credentials `other` (allowed: own)"), "{message}");
}

#[tokio::test]
async fn the_files_of_the_role_are_not_read_by_any_path() {
    let folders = Folders::new();
    std::fs::hard_link(folders.at("out/secret.txt"), folders.at("in/hard.txt")).unwrap();
    folders.link("out/secret.txt", "in2/link.txt");
    let own = ProtectedFiles::new([std::path::PathBuf::from(folders.at("out/secret.txt"))]);
    let stores = Stores::with_access(ObjectAccess::default().with_own_files(own));
    for url in
        ["out/secret.txt", "out/", "out/*", "in/hard.txt", "in/*", "in2/link.txt", "in/../out/secret.txt"]
    {
        let dataset = Dataset::new(Source::text(folders.at(url)), Arc::clone(&stores)).unwrap();
        is_refused(dataset.list().await);
        if !url.ends_with(['/', '*']) {
            is_refused(stores.get(&folders.at(url)).await);
        }
    }
    assert_eq!(stores.get(&folders.at("in/a.txt")).await.unwrap(), "text\n");
    // Another process listed it by a path that was allowed at that time.
    let other = Dataset::new(Source::text(folders.at("in/hard.txt")), Stores::new(Vec::new())).unwrap();
    let mut shard = other.list().await.unwrap().remove(0);
    shard.url = format!("file://{}", folders.at("in/later.txt"));
    let dataset = Dataset::new(Source::text(folders.at("in/a.txt")), stores).unwrap();
    is_refused(dataset.index_shard(&shard).await);
}
