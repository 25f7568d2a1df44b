//! A job over a folder of images in this process: what the loop is compared with.

use std::path::Path;
use std::sync::Arc;

use feedline_client::{ClientSettings, Job};
use feedline_core::cluster::messages::JobSpec;
use feedline_core::pipeline::Pipeline;

use super::SIZE;
use crate::cli::LocalArgs;
use crate::cluster::Cluster;
use crate::entropy;
use crate::failure::Failure;

/// Rows of a batch.
const BATCH: u32 = 128;

/// Images per second from the first batch on: random crops of the folder's images, resized and batched.
pub(super) async fn turn(folder: &Path, scratch: &Path, cores: u32, passes: u32) -> Result<f64, Failure> {
    let local = LocalArgs {
        workers: 1,
        cores: Some(cores),
        memory: None,
        index_dir: Some(scratch.join("index")),
        cache_dir: Some(scratch.join("cache")),
        cache_disk: 0,
        trace: Default::default(),
    };
    let cluster = Cluster::open(None, &local).await?;
    // One more pass than is measured: up to the first batch, reading and starting are.
    let rate = deliver(&cluster, folder, passes + 1).await;
    cluster.shutdown().await;
    rate
}

async fn deliver(cluster: &Cluster, folder: &Path, epochs: u32) -> Result<f64, Failure> {
    let spec = JobSpec { epochs, ..JobSpec::new(pipeline(folder)?) };
    let job =
        Job::open(Arc::clone(&cluster.coordinator), cluster.directory(), spec, ClientSettings::default())
            .await?;
    let mut consumer = job.consumer(0, entropy::session_id());
    let first = consumer.next().await?;
    let before = first.map_or(0, |batch| batch.info.rows);
    let started = std::time::Instant::now();
    while consumer.next().await?.is_some() {}
    let rows = consumer.stats().rows - u64::from(before);
    Ok(rows as f64 / started.elapsed().as_secs_f64())
}

fn pipeline(folder: &Path) -> Result<Pipeline, Failure> {
    let pipeline = serde_json::json!({
        "name": "bench-kernel",
        "source": {
            "url": format!("{}/", folder.display()),
            "format": "files",
            "features": {"image": "bytes"},
        },
        "shuffle": {"window": 1024},
        "on_error": "skip",
        "operators": [
            {"random_resized_crop": {"column": "image", "size": SIZE}},
            {"batch": {"size": BATCH}},
        ],
    });
    serde_json::from_value(pipeline).map_err(Failure::failed)
}
