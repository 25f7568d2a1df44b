//! A job over a directory of images in this process, which `feedline bench kernel` compares with the plain loop.

use std::path::Path;
use std::time::Instant;

use feedline_client::{ClientSettings, Job};
use feedline_command::Failure;
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::{Pipeline, Size};

use crate::host::{EmbeddedCluster, ToolHost};

/// Height and width of the cropped images.
pub(super) const SIZE: Size = [224, 224];
/// Rows per batch.
const BATCH_ROWS: u32 = 32;
/// Number of rows that are delivered before counting begins.
const WARM_UP_ROWS: u64 = 1_024;
/// Minimum number of counted rows.
const MIN_COUNTED_ROWS: u64 = 4_096;

/// Returns the images per second of a job that crops, resizes and batches the images in `folder`.
pub(super) async fn measure(
    host: &dyn ToolHost,
    folder: &Path,
    scratch: &Path,
    images: u64,
    (cores, passes): (u32, u32),
) -> Result<f64, Failure> {
    let cluster = host.start_cluster(cores, scratch).await?;
    let rate = deliver(host, cluster.as_ref(), folder, images, passes).await;
    cluster.shutdown().await;
    rate
}

async fn deliver(
    host: &dyn ToolHost,
    cluster: &dyn EmbeddedCluster,
    folder: &Path,
    images: u64,
    passes: u32,
) -> Result<f64, Failure> {
    // Batches that are ready when counting begins use no CPU time during the measurement. Count many more rows, so that
    // their effect is small.
    let warm_up = WARM_UP_ROWS.max(images);
    let rows = (images * u64::from(passes)).max(MIN_COUNTED_ROWS);
    let epochs = (warm_up + rows).div_ceil(images) as u32;
    let spec = JobSpec { epochs, ..JobSpec::new(pipeline(folder)?) };
    let job = Job::open(cluster.coordinator(), cluster.directory(), spec, ClientSettings::default()).await?;
    let mut consumer = job.consumer(0, host.next_session());
    while consumer.stats().rows < warm_up && consumer.next().await?.is_some() {}
    let (rows_before, started) = (consumer.stats().rows, Instant::now());
    while consumer.next().await?.is_some() {}
    let rows = consumer.stats().rows - rows_before;
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
            {"batch": {"size": BATCH_ROWS}},
        ],
    });
    serde_json::from_value(pipeline).map_err(Failure::failed)
}
