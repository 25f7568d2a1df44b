//! Measures how many bytes a resume in a compressed file of JSON lines decompresses before its first row. `make compressed` runs it.
//!
//! A resume reads the block that contains its row. For each of a number of random rows, the program reads this block, and reads the
//! counter of decompressed bytes before and after.

use std::error::Error;
use std::sync::Arc;

use feedline_data::manifest::{Block, IndexedShard};
use feedline_data::pipeline::{Format, Source};
use feedline_sources::{BlockRead, Dataset, Stores};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

const USAGE: &str = "usage: resume_bytes FILE ROWS";
const COUNTER: &str = "feedline_worker_decompressed_bytes_total{purpose=\"read\"}";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, count] = arguments.as_slice() else { return Err(USAGE.into()) };
    let count: u64 = count.parse().map_err(|_| USAGE)?;
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let stores = Stores::new(Vec::new());
    let dataset = Dataset::new(Source::new(Format::Jsonl, file), Arc::clone(&stores))?;
    let shard = dataset.list().await?.pop().ok_or("the file does not exist")?;
    let IndexedShard { index, .. } = dataset.index_shard(&shard).await?;
    let schema = index.schema.as_ref().ok_or("the file has no rows")?;
    let mut decompressed = Vec::new();
    for number in 0..count {
        let row = random(number) % index.rows();
        let block = block_of(&index.blocks, row).ok_or("the index has fewer rows than it states")?;
        let read = BlockRead { shard: &shard, block, index: Some(&index), schema, rows: None };
        let before = decompressed_bytes(&metrics);
        let rows = dataset.read_block(&read).await?;
        if rows.batch.num_rows() != block.rows as usize {
            return Err(format!("the block of row {row} has failed rows").into());
        }
        decompressed.push(decompressed_bytes(&metrics) - before);
    }
    decompressed.sort_unstable();
    let (median, max) = (decompressed.get(decompressed.len() / 2), decompressed.last());
    println!(
        "{{\"rows\": {}, \"median\": {}, \"max\": {}}}",
        index.rows(),
        median.unwrap_or(&0),
        max.unwrap_or(&0)
    );
    Ok(())
}

/// The block that contains a row.
fn block_of(blocks: &[Block], row: u64) -> Option<&Block> {
    let mut end = 0;
    blocks.iter().find(|block| {
        end += u64::from(block.rows);
        row < end
    })
}

fn decompressed_bytes(metrics: &PrometheusHandle) -> u64 {
    let text = metrics.render();
    let value = text.lines().find_map(|line| line.strip_prefix(COUNTER));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// A pseudorandom number, the same in each run (the finalizer of SplitMix64).
fn random(number: u64) -> u64 {
    let mut mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
