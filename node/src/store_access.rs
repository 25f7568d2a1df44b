//! What flags, files and the environment say of object stores, put together for each role.

use std::path::{Path, PathBuf};

use feedline_access::OwnFiles;
use feedline_data::read_policy::ReadPolicy;
use feedline_data::urls::{UrlPolicy, local_path};
use feedline_worker::ObjectAccess;

use crate::cli::{GuardArgs, StoreArgs};
use crate::failure::Failure;
use crate::{credentials_file, environment};

/// How a worker reaches objects.
pub(crate) fn of_worker(args: &StoreArgs) -> Result<ObjectAccess, Failure> {
    let access = ObjectAccess::new(environment::store_options())
        .within(prefixes(args)?)
        .metadata_addresses(args.allow_metadata_addresses);
    match &args.credentials {
        Some(file) => Ok(access.with_credentials(credentials_file::load(file)?)),
        None => Ok(access),
    }
}

/// What a coordinator on its own lets pipelines read. Of credentials it keeps the names; without a file of them the workers
/// know.
pub(crate) fn of_coordinator(args: &StoreArgs) -> Result<ReadPolicy, Failure> {
    let urls = prefixes(args)?;
    let credentials = match &args.credentials {
        Some(file) => {
            let known = credentials_file::load(file)?;
            Some(known.into_iter().map(|(name, credential)| (name, credential.urls().clone())).collect())
        }
        None => None,
    };
    let metadata_addresses = args.allow_metadata_addresses;
    Ok(ReadPolicy { urls, metadata_addresses, local_by_prefix: false, credentials })
}

/// Options of stores, beside those whose names end in `_file`, that name a file of keys.
const KEY_FILES: [&str; 3] =
    ["google_application_credentials", "google_service_account", "google_service_account_path"];

/// Files of a role that no pipeline reads: its keys, its token and its credentials, those that the environment names, what its
/// process tells of itself, and these others.
pub(crate) fn own_files(
    guard: &GuardArgs,
    stores: &StoreArgs,
    others: impl IntoIterator<Item = PathBuf>,
) -> OwnFiles {
    let access = &guard.access;
    let files = [&access.tls_cert, &access.tls_key, &access.token_file, &stores.credentials];
    let names_keys = |option: &str| option.ends_with("_file") || KEY_FILES.contains(&option);
    let options = environment::store_options().into_iter();
    let of_stores = options.filter(|(option, _)| names_keys(&option.to_ascii_lowercase()));
    let of_the_process = PathBuf::from("/proc");
    let named = files.into_iter().flatten().cloned().chain(others);
    OwnFiles::new(named.chain(of_stores.map(|(_, path)| path.into())).chain([of_the_process]))
}

/// What workers keep in a cache directory.
pub(crate) fn in_cache_dir(folder: &Path) -> Vec<PathBuf> {
    let rows = feedline_worker::kept_rows(&folder.join("rows"));
    feedline_worker::kept_indexes(folder).into_iter().chain([rows]).collect()
}

/// What workers keep in a place in a store, where that is a local one.
pub(crate) fn in_cache_store(url: &str) -> Option<PathBuf> {
    local_path(url).map(|folder| feedline_worker::kept_store_rows(Path::new(&folder)))
}

fn prefixes(args: &StoreArgs) -> Result<UrlPolicy, Failure> {
    UrlPolicy::new(&args.allow_url).map_err(|sentence| Failure::wrong_use(format!("--allow-url: {sentence}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_role_keeps_for_itself_is_put_together() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut guard = GuardArgs::default();
        guard.access.tls_key = Some(at("role-key.pem"));
        guard.access.token_file = Some(at("worker.token"));
        let stores = StoreArgs { credentials: Some(at("c.yaml")), ..StoreArgs::default() };
        let kept = in_cache_dir(&at("cache")).into_iter().chain(in_cache_store("file:///rows"));
        let own = own_files(&guard, &stores, kept);
        for name in [
            "role-key.pem",
            "worker.token",
            "c.yaml",
            "cache/1-2.manifest",
            "cache/1-2.part-3",
            "cache/rows/part-000/0/1.rows",
        ] {
            assert!(own.check(&at(name)).is_err(), "{name}");
        }
        assert!(own.check("/proc/self/environ".as_ref()).is_err());
        assert!(own.check("/rows/0/1.rows".as_ref()).is_err());
        for name in ["sets/x", "cache/x.jsonl", "cache/rows/x", "cache/sets/a.tar"] {
            assert_eq!(own.check(&at(name)), Ok(()), "{name}");
        }
        assert_eq!(own.check("/rows/x.jsonl".as_ref()), Ok(()));
        assert_eq!(in_cache_store("s3://bucket/rows"), None);
    }

    #[test]
    fn flags_become_what_each_role_goes_by() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.yaml");
        std::fs::write(&file, "one: {aws_region: here, urls: s3://bucket}\n").unwrap();
        let args = StoreArgs {
            credentials: Some(file),
            allow_url: vec!["s3://bucket".to_owned()],
            allow_metadata_addresses: true,
        };
        let (worker, coordinator) = (of_worker(&args).unwrap(), of_coordinator(&args).unwrap());
        assert_eq!(worker.reads(), &coordinator);
        assert!(coordinator.metadata_addresses && coordinator.check_url("s3://other/x").is_err());
        assert!(coordinator.check_credentials("one", &["s3://bucket/x".to_owned()]).is_ok());
        let nothing = StoreArgs::default();
        assert_eq!(of_coordinator(&nothing).unwrap(), ReadPolicy::default());
        assert!(of_worker(&nothing).unwrap().reads().check_credentials("one", &[]).is_err());
    }
}
