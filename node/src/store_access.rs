//! What flags, files and the environment say of object stores, put together for each role.

use feedline_core::urls::{ReadPolicy, UrlPolicy};
use feedline_worker::Access;

use crate::cli::StoreArgs;
use crate::failure::Failure;
use crate::{credentials_file, environment};

/// How a worker reaches objects.
pub(crate) fn of_worker(args: &StoreArgs) -> Result<Access, Failure> {
    let access = Access::new(environment::store_options())
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
    Ok(ReadPolicy { urls, metadata_addresses: args.allow_metadata_addresses, credentials })
}

fn prefixes(args: &StoreArgs) -> Result<UrlPolicy, Failure> {
    UrlPolicy::new(&args.allow_url).map_err(|sentence| Failure::wrong_use(format!("--allow-url: {sentence}")))
}

#[cfg(test)]
mod tests {
    use super::*;

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
