//! Flags for object stores and files: what pipelines may read, and with which credentials.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use feedline_data::urls::UrlPolicy;

/// What pipelines may read, and with which credentials.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoreArgs {
    /// YAML file with credentials for object stores. Each name, which pipelines refer to as `credentials`, has options
    /// such as aws_access_key_id and, as `urls`, the prefixes that the credentials apply to [default: only the
    /// environment variables AWS_*, GOOGLE_* and AZURE_*].
    #[arg(long, value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,
    /// URL prefix or local directory that pipelines may read, such as s3://bucket/sets; the flag can be repeated [default:
    /// everything; with tokens, no local files].
    #[arg(long, value_name = "PREFIX", value_parser = parse_prefix)]
    pub(crate) allow_url: Vec<String>,
    /// Allow pipelines to read cloud metadata addresses, which serve a machine's credentials, such as 169.254.169.254.
    #[arg(long)]
    pub(crate) allow_metadata_addresses: bool,
}

/// How workers read object stores and files.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WorkerStoreArgs {
    #[command(flatten)]
    pub(crate) reads: StoreArgs,
    /// Time for which a worker retries a failed request to an object store before the job fails; the last backoff and
    /// request may add up to 35s [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = crate::size::parse_duration)]
    pub(crate) store_retry_timeout: Option<Duration>,
}

fn parse_prefix(text: &str) -> Result<String, String> {
    UrlPolicy::new([text]).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_prefix_is_validated_when_it_is_parsed() {
        assert_eq!(parse_prefix("s3://bucket/a").as_deref(), Ok("s3://bucket/a"));
        assert!(parse_prefix("bucket").unwrap_err().contains("relative"));
    }
}
