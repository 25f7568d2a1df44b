//! Files of any size that are read by ranges, such as the arrays of a graph.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use feedline_data::tenants::TenantReads;

use crate::error::SourceError;
use crate::location::Location;
use crate::object::{Object, head};
use crate::stores::{ScopedStores, Stores};

/// A file in a store or on a local disk. A read fails if the file has changed since it was opened. Failed requests are retried.
pub struct StoreFile {
    object: Object,
}

impl std::fmt::Debug for StoreFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreFile").field("shard", self.object.shard()).finish_non_exhaustive()
    }
}

impl StoreFile {
    /// Opens a file with the credentials of this name, for a tenant. `url` may be a local path.
    ///
    /// # Errors
    /// Returns an error if the file does not exist, the read policy or the tenant's permissions reject it, or the store fails.
    pub async fn open(
        stores: &Arc<Stores>,
        url: &str,
        credentials: Option<&str>,
        tenant: &TenantReads,
    ) -> Result<Self, SourceError> {
        let reads = ScopedStores::new(Arc::clone(stores), credentials.map(str::to_owned), tenant);
        reads.check(url)?;
        reads.check_credentials(&[url.to_owned()])?;
        let location = Location::parse(url)?;
        reads.check_object(&location)?;
        let store = reads.open(&location)?;
        let shard = head(store.as_ref(), &location, url).await?;
        let file = reads.check_shard(&location, &shard)?;
        Ok(Self { object: reads.object(store, location.key()?, shard).with_file(file) })
    }

    /// The size when the file was opened.
    pub fn size_bytes(&self) -> u64 {
        self.object.size_bytes()
    }

    /// Whether the file is on a local disk.
    pub fn is_local(&self) -> bool {
        self.object.is_local()
    }

    /// Reads a range. Large ranges are read by concurrent requests.
    ///
    /// # Errors
    /// Returns an error if the range exceeds the file, the file has changed, or the store fails.
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
        self.object.read(range).await
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::urls::UrlPolicy;

    use super::*;
    use crate::access::ObjectAccess;

    #[tokio::test]
    async fn a_file_is_read_by_ranges_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        std::fs::write(&path, b"0123456789").unwrap();
        let url = path.to_str().unwrap();
        let stores = Stores::new(Vec::new());
        let file = StoreFile::open(&stores, url, None, &TenantReads::default()).await.unwrap();
        assert_eq!(file.size_bytes(), 10);
        assert!(file.is_local());
        assert_eq!(file.read(3..7).await.unwrap(), Bytes::from_static(b"3456"));
        assert!(file.read(3..11).await.is_err());
        std::fs::write(&path, b"012345678").unwrap();
        assert!(file.read(0..4).await.is_err());
    }

    #[tokio::test]
    async fn the_read_policy_applies() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        std::fs::write(&path, b"0123456789").unwrap();
        let policy = UrlPolicy::new(["s3://bucket"]).unwrap();
        let stores = Stores::with_access(ObjectAccess::new(Vec::new()).with_allowed_urls(policy));
        let opened = StoreFile::open(&stores, path.to_str().unwrap(), None, &TenantReads::default()).await;
        assert!(matches!(opened, Err(SourceError::Rejected { .. })));
        let stores = Stores::new(Vec::new());
        let missing = folder.path().join("b.npy");
        let opened = StoreFile::open(&stores, missing.to_str().unwrap(), None, &TenantReads::default()).await;
        assert!(matches!(opened, Err(SourceError::NotFound { .. })));
    }
}
