//! Flags on what pipelines may read and with which keys: the same for every role.

use std::path::PathBuf;

use clap::Args;
use feedline_data::urls::UrlPolicy;

/// What pipelines may read, and with which keys.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoreArgs {
    /// YAML file of credentials for object stores: names that pipelines give as `credentials`, each with options such as
    /// aws_access_key_id and, under `urls`, the prefixes that it is for [default: the environment's AWS_*, GOOGLE_* and
    /// AZURE_* alone].
    #[arg(long, value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,
    /// Prefix of URLs, or local folder, that pipelines may read, such as s3://bucket/sets; may be given several times
    /// [default: any; but no local file where tokens are in use].
    #[arg(long, value_name = "PREFIX", value_parser = parse_prefix)]
    pub(crate) allow_url: Vec<String>,
    /// Let pipelines read from addresses at which clouds tell a machine its keys, such as 169.254.169.254.
    #[arg(long)]
    pub(crate) allow_metadata_addresses: bool,
}

fn parse_prefix(text: &str) -> Result<String, String> {
    UrlPolicy::new([text]).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_checked_where_it_is_written() {
        assert_eq!(parse_prefix("s3://bucket/a").as_deref(), Ok("s3://bucket/a"));
        assert!(parse_prefix("bucket").unwrap_err().contains("relative"));
    }
}
