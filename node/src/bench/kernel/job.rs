//! A job over a folder of images in this process: what the loop is compared with.

use std::path::Path;
use std::sync::Arc;

use feedline_client::{ClientSettings, Job};
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::Pipeline;

use super::SIZE;
use crate::cli::{AccessArgs, CacheArgs, LocalArgs};
use crate::cluster::LocalCluster;
use crate::entropy;
use crate::failure::Failure;

/// Rows of a batch.
const BATCH: u32 = 32;
/// Rows before counting begins, and rows that are counted at least.
const WARM_UP: u64 = 1_024;
const LEAST: u64 = 4_096;

/// Images per second from the first batch on: random crops of the folder's images, resized and batched.
pub(super) async fn turn(
    folder: &Path,
    scratch: &Path,
    images: u64,
    (cores, passes): (u32, u32),
) -> Result<f64, Failure> {
    let local = LocalArgs {
        workers: 1,
        cores: Some(cores),
        memory: None,
        index_dir: Some(scratch.join("index")),
        cache: CacheArgs { cache_dir: Some(scratch.join("cache")), ..CacheArgs::default() },
        auto_cache: crate::cli::SwitchArg::Off,
        stores: Default::default(),
        functions: Default::default(),
        trace: Default::default(),
    };
    let cluster = LocalCluster::open(&[], &AccessArgs::default(), &local).await?;
    let rate = deliver(&cluster, folder, images, passes).await;
    cluster.shutdown().await;
    rate
}

async fn deliver(cluster: &LocalCluster, folder: &Path, images: u64, passes: u32) -> Result<f64, Failure> {
    // What is computed ahead when counting begins is not computed again: so many times more rows are counted.
    let warm_up = WARM_UP.max(images);
    let rows = (images * u64::from(passes)).max(LEAST);
    let epochs = (warm_up + rows).div_ceil(images) as u32;
    let spec = JobSpec { epochs, ..JobSpec::new(pipeline(folder)?) };
    let job =
        Job::open(Arc::clone(&cluster.coordinator), cluster.directory(), spec, ClientSettings::default())
            .await?;
    let mut consumer = job.consumer(0, entropy::session_id());
    while consumer.stats().rows < warm_up && consumer.next().await?.is_some() {}
    let (before, started) = (consumer.stats().rows, std::time::Instant::now());
    while consumer.next().await?.is_some() {}
    let rows = consumer.stats().rows - before;
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
