//! Tests of the checks before a job is opened.

use std::collections::BTreeMap;

use feedline_access::ProtectedFiles;
use feedline_data::messages::{JobSpec, ServiceErrorKind};
use feedline_data::pipeline::{Pipeline, Source};
use feedline_data::read_policy::ReadPolicy;
use feedline_data::tenants::{TenantReads, Tenants};
use feedline_data::urls::UrlPolicy;

use crate::settings::CoordinatorSettings;

/// Returns the error for a job with this source under a read policy.
async fn refused(reads: ReadPolicy, source: Source) -> String {
    let folder = tempfile::tempdir().unwrap();
    let settings = CoordinatorSettings { reads, ..CoordinatorSettings::in_memory(folder.path()) };
    refused_with(settings, source).await
}

/// Returns the error under these settings.
async fn refused_with(settings: CoordinatorSettings, source: Source) -> String {
    let coordinator = crate::start(settings, 1).await.unwrap();
    let mut pipeline = Pipeline::builder("p").source(Source::text("/x")).batch(1).build().unwrap();
    pipeline.source = source;
    let refusal = coordinator.service().open_job(JobSpec::new(pipeline)).await.unwrap_err();
    assert_eq!(refusal.kind, ServiceErrorKind::Invalid);
    assert!(coordinator.service().list_jobs().await.unwrap().is_empty());
    coordinator.shutdown().await.unwrap();
    refusal.message
}

#[tokio::test]
async fn a_source_outside_of_the_policy_is_rejected() {
    let reads = ReadPolicy { urls: UrlPolicy::new(["s3://bucket/a"]).unwrap(), ..ReadPolicy::default() };
    let said = refused(reads, Source::text("s3://bucket/ab/x")).await;
    assert!(said.starts_with("source.url: `s3://bucket/ab/x` is outside the allowed URLs"), "{said}");
}

#[tokio::test]
async fn metadata_services_and_secrets_are_rejected() {
    let said = refused(ReadPolicy::default(), Source::files("http://169.254.169.254/latest/")).await;
    assert!(said.contains("--allow-metadata-addresses"), "{said}");
    let said = refused(ReadPolicy::default(), Source::files("https://me:HUSH@host/x")).await;
    assert!(said.starts_with("source.url: ") && !said.contains("HUSH"), "{said}");
}

#[tokio::test]
async fn unknown_credentials_are_named_in_the_error() {
    let known = BTreeMap::from([("imagenet".to_owned(), UrlPolicy::default())]);
    let reads = ReadPolicy { credentials: Some(known), ..ReadPolicy::default() };
    let said = refused(reads, Source::text("s3://bucket/x").credentials("imagent")).await;
    assert_eq!(
        said,
        "source.credentials: unknown credentials `imagent`; did you mean `imagenet`? (known: imagenet)"
    );
}

#[tokio::test]
async fn an_error_does_not_reveal_the_credentials_of_other_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let known = ["imagenet", "text", "vision"].map(|name| (name.to_owned(), UrlPolicy::default()));
    let reads = ReadPolicy { credentials: Some(known.into()), ..ReadPolicy::default() };
    let may_name = |names: &[&str]| {
        let credentials = Some(names.iter().map(|name| (*name).to_owned()).collect());
        let default_reads = TenantReads { credentials, ..TenantReads::default() };
        let tenants = Tenants { default_reads, ..Tenants::default() };
        let mut settings = CoordinatorSettings::in_memory(folder.path());
        settings.reads = reads.clone();
        settings.cluster.tenants = tenants;
        settings
    };
    let source = |name: &str| Source::text("s3://bucket/x").credentials(name);
    let said = refused_with(may_name(&["vision"]), source("text")).await;
    assert!(said.contains("(allowed: vision)") && !said.contains("imagenet"), "{said}");
    // Permitted credentials that do not exist.
    let said = refused_with(may_name(&["vision", "gone"]), source("gone")).await;
    assert!(said.ends_with("(known: vision)"), "{said}");
}

#[tokio::test]
async fn the_files_of_the_coordinator_are_rejected_as_sources() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::symlink(&data, folder.path().join("link")).unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for url in
        [at("data/log"), at("data/*"), at("link/log"), at("{x,link}/*"), format!("file://{}", at("d%61ta/"))]
    {
        let settings = CoordinatorSettings {
            own_files: ProtectedFiles::new([data.clone()]),
            ..CoordinatorSettings::in_memory(folder.path().join("index"))
        };
        let said = refused_with(settings, Source::text(&url)).await;
        assert!(said.starts_with("source.url: ") && said.contains("the protected file"), "{url}: {said}");
    }
}
