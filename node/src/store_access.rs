//! Determines the access of each role to object stores and files from flags, files and the environment.

use std::path::{Path, PathBuf};
use std::time::Duration;

use feedline_access::ProtectedFiles;
use feedline_data::read_policy::ReadPolicy;
use feedline_data::urls::{UrlPolicy, local_path};
use feedline_worker::ObjectAccess;

use crate::cli::{ServerAccessArgs, StoreArgs, WorkerStoreArgs};
use crate::failure::Failure;
use crate::{credentials_file, environment};

/// Returns the settings with which a worker reads objects.
pub(crate) fn for_worker(args: &WorkerStoreArgs) -> Result<ObjectAccess, Failure> {
    let mut access = ObjectAccess::new(environment::store_options())
        .with_allowed_urls(prefixes(&args.reads)?)
        .with_metadata_addresses(args.reads.allow_metadata_addresses);
    if let Some(timeout) = args.store_retry_timeout {
        access = access.with_retry_budget(timeout);
    }
    match &args.reads.credentials {
        Some(file) => Ok(access.with_credentials(credentials_file::load(file)?)),
        None => Ok(access),
    }
}

/// Returns the settings with which `feedline lint` and `feedline preview` read objects: those of a worker, with a short
/// retry budget.
pub(crate) fn for_preflight(args: &StoreArgs, retry_budget: Duration) -> Result<ObjectAccess, Failure> {
    for_worker(&WorkerStoreArgs { reads: args.clone(), store_retry_timeout: Some(retry_budget) })
}

/// Returns the policy that determines which data a coordinator allows pipelines to read. It contains only the names of
/// credentials. Without a credentials file, the workers check the names.
pub(crate) fn for_coordinator(args: &StoreArgs) -> Result<ReadPolicy, Failure> {
    let urls = prefixes(args)?;
    let credentials = match &args.credentials {
        Some(file) => {
            let credentials = credentials_file::load(file)?;
            Some(
                credentials.into_iter().map(|(name, credential)| (name, credential.urls().clone())).collect(),
            )
        }
        None => None,
    };
    let metadata_addresses = args.allow_metadata_addresses;
    Ok(ReadPolicy { urls, metadata_addresses, local_by_prefix: false, credentials })
}

/// Options of object stores whose values are paths of credential files, in addition to options that end in `_file`.
const CREDENTIAL_FILE_OPTIONS: [&str; 3] =
    ["google_application_credentials", "google_service_account", "google_service_account_path"];

/// Returns the files that no pipeline may read: the role's keys, token and credentials, credential files that the
/// environment names, `/proc`, and `others`.
pub(crate) fn own_files(
    server_access: &ServerAccessArgs,
    stores: &StoreArgs,
    others: impl IntoIterator<Item = PathBuf>,
) -> ProtectedFiles {
    let access = &server_access.access;
    let files = [&access.tls_cert, &access.tls_key, &access.token_file, &stores.credentials];
    let names_credentials =
        |option: &str| option.ends_with("_file") || CREDENTIAL_FILE_OPTIONS.contains(&option);
    let options = environment::store_options().into_iter();
    let store_files = options.filter(|(option, _)| names_credentials(&option.to_ascii_lowercase()));
    let process_files = PathBuf::from("/proc");
    let named = files.into_iter().flatten().cloned().chain(others);
    ProtectedFiles::new(named.chain(store_files.map(|(_, path)| path.into())).chain([process_files]))
}

/// Returns the files that workers write to a cache directory.
pub(crate) fn cache_dir_files(folder: &Path) -> Vec<PathBuf> {
    let parts = ["rows", "graphs"].map(|name| feedline_worker::cached_rows_pattern(&folder.join(name)));
    feedline_worker::stored_index_patterns(folder).into_iter().chain(parts).collect()
}

/// Returns the files that workers write to the cache in a store, if its URL is a local path.
pub(crate) fn cache_store_files(url: &str) -> Option<PathBuf> {
    local_path(url).map(|folder| feedline_worker::store_segments_pattern(Path::new(&folder)))
}

fn prefixes(args: &StoreArgs) -> Result<UrlPolicy, Failure> {
    UrlPolicy::new(&args.allow_url)
        .map_err(|sentence| Failure::invalid_usage(format!("--allow-url: {sentence}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_files_contain_keys_tokens_credentials_and_caches() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut server_access = ServerAccessArgs::default();
        server_access.access.tls_key = Some(at("role-key.pem"));
        server_access.access.token_file = Some(at("worker.token"));
        let stores = StoreArgs { credentials: Some(at("c.yaml")), ..StoreArgs::default() };
        let stored = cache_dir_files(&at("cache")).into_iter().chain(cache_store_files("file:///rows"));
        let own = own_files(&server_access, &stores, stored);
        for name in [
            "role-key.pem",
            "worker.token",
            "c.yaml",
            "cache/1-2.manifest",
            "cache/1-2.part-3",
            "cache/rows/part-000/0/1.rows",
            "cache/graphs/part-000/blocks/1.block",
        ] {
            assert!(own.check(&at(name)).is_err(), "{name}");
        }
        assert!(own.check("/proc/self/environ".as_ref()).is_err());
        assert!(own.check("/rows/0/1.rows".as_ref()).is_err());
        for name in ["sets/x", "cache/x.jsonl", "cache/rows/x", "cache/sets/a.tar"] {
            assert_eq!(own.check(&at(name)), Ok(()), "{name}");
        }
        assert_eq!(own.check("/rows/x.jsonl".as_ref()), Ok(()));
        assert_eq!(cache_store_files("s3://bucket/rows"), None);
    }

    #[test]
    fn worker_and_coordinator_derive_the_same_policy_from_flags() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.yaml");
        std::fs::write(&file, "one: {aws_region: here, urls: s3://bucket}\n").unwrap();
        let args = StoreArgs {
            credentials: Some(file),
            allow_url: vec!["s3://bucket".to_owned()],
            allow_metadata_addresses: true,
        };
        let worker_args = WorkerStoreArgs { reads: args.clone(), ..WorkerStoreArgs::default() };
        let (worker, coordinator) = (for_worker(&worker_args).unwrap(), for_coordinator(&args).unwrap());
        assert_eq!(worker.reads(), &coordinator);
        assert!(coordinator.metadata_addresses && coordinator.check_url("s3://other/x").is_err());
        assert!(coordinator.check_credentials("one", &["s3://bucket/x".to_owned()]).is_ok());
        assert_eq!(for_coordinator(&StoreArgs::default()).unwrap(), ReadPolicy::default());
        assert!(
            for_worker(&WorkerStoreArgs::default()).unwrap().reads().check_credentials("one", &[]).is_err()
        );
    }
}
