//! Tests of the loader with a worker that sends the rows of a feature in chunks, intact or damaged.

use async_trait::async_trait;
use feedline_data::graph::description::GraphHash;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use futures::stream::BoxStream;

use super::*;

/// Sends a response in chunks of this size.
struct OneResponse {
    response: Vec<u8>,
    chunk_bytes: usize,
}

#[async_trait]
impl WorkerService for OneResponse {
    async fn fetch(
        &self,
        mut requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let Some(FetchRequest::Features(_)) = requests.next().await else {
            return Err(ServiceError::new(ServiceErrorKind::Invalid, "the request names no feature"));
        };
        let mut frames = Vec::new();
        for (index, chunk) in self.response.chunks(self.chunk_bytes).enumerate() {
            let offset = (index * self.chunk_bytes) as u64;
            frames.push(Ok(Frame::Chunk { offset, data: chunk.to_vec().into() }));
        }
        frames.push(Ok(Frame::End));
        Ok(stream::iter(frames).boxed())
    }
}

/// The numbers of a feature, of which batches contain `dtype`.
struct TestFeature {
    planned: PlannedFeature,
    response: Vec<u8>,
}

const NODES: u32 = 6;

fn test_feature(stored: ScalarType, data: &[u8], dtype: ScalarType) -> TestFeature {
    let elements = data.len() / NODES as usize / stored.width_bytes();
    let blocks = data.chunks(HASH_BLOCK_BYTES as usize).map(|block| BlockHash(xxh3_64(block))).collect();
    let file = StoredFile { path: "nodes/x.npy".to_owned(), bytes: 128 + data.len() as u64, blocks };
    let (name, shape) = ("x".to_owned(), vec![elements as u32]);
    let feature = GraphFeature { name: name.clone(), dtype: stored, shape: shape.clone(), file };
    let mut response = feature.file.bytes.to_le_bytes().to_vec();
    response.extend(feature.file.blocks.iter().flat_map(|block| block.0.to_le_bytes()));
    response.extend_from_slice(data);
    let summary = FeatureSummary { name, dtype: stored, shape, content: feature.content_hash() };
    let row_bytes = elements * dtype.width_bytes();
    let planned = PlannedFeature { column: "x".to_owned(), summary, dtype, row_bytes, nodes: NODES };
    TestFeature { planned, response }
}

async fn load(
    planned: &PlannedFeature,
    response: &[u8],
    chunk_bytes: usize,
    rows: u32,
) -> Result<Vec<u8>, String> {
    let worker = OneResponse { response: response.to_vec(), chunk_bytes };
    let (job, content) = (JobId(1), planned.summary.content);
    planned.load(&worker, FeatureRowsRequest { job, ticket: String::new(), content, rows }).await
}

#[tokio::test]
async fn rows_from_chunks_of_any_size_are_cached_in_the_type_of_batches() {
    let numbers: Vec<f32> = (0..NODES * 4).map(|number| number as f32 + 0.25).collect();
    let singles: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let doubles: Vec<u8> = numbers.iter().flat_map(|number| f64::from(*number).to_le_bytes()).collect();
    let same = test_feature(ScalarType::Float32, &singles, ScalarType::Float32);
    let wider = test_feature(ScalarType::Float32, &singles, ScalarType::Float64);
    let narrower = test_feature(ScalarType::Float64, &doubles, ScalarType::Float32);
    for chunk_bytes in [1, 7, 64, 1 << 20] {
        for rows in [1, 3, NODES] {
            for (feature, expected) in [(&same, &singles), (&wider, &doubles), (&narrower, &singles)] {
                let loaded = load(&feature.planned, &feature.response, chunk_bytes, rows).await;
                let bytes = feature.planned.row_bytes * rows as usize;
                assert_eq!(loaded, Ok(expected[..bytes].to_vec()));
            }
        }
    }
}

#[tokio::test]
async fn rows_that_differ_from_the_feature_of_the_job_are_rejected() {
    let data: Vec<u8> = (0..NODES as u8 * 16).collect();
    let TestFeature { planned, response } = test_feature(ScalarType::Float32, &data, ScalarType::Float32);
    for place in 0..response.len() {
        let mut damaged = response.clone();
        damaged[place] ^= 1;
        let error = load(&planned, &damaged, 64, NODES).await.expect_err("a byte differs");
        assert!(error.contains("differ from the feature"), "{error}");
    }
    let error =
        load(&planned, &response[..response.len() - 1], 64, NODES).await.expect_err("a byte is missing");
    assert!(error.contains("ended before"), "{error}");
    let longer = [&response[..], &[0]].concat();
    let error = load(&planned, &longer, 64, NODES).await.expect_err("there is one more byte");
    assert!(error.contains("more rows"), "{error}");
    let mut other = planned;
    other.summary.content = GraphHash(1);
    let error = load(&other, &response, 64, NODES).await.expect_err("the feature was built again");
    assert!(error.contains("differ from the feature"), "{error}");
}

#[tokio::test]
async fn a_worker_may_send_fewer_blocks_than_were_requested() {
    let row_bytes = 3 << 19;
    let data: Vec<u8> = (0..NODES as usize * row_bytes).map(|byte| (byte / 7) as u8).collect();
    let TestFeature { planned, response } = test_feature(ScalarType::Float32, &data, ScalarType::Float32);
    let head_bytes = response.len() - data.len();
    // The first block contains five whole rows of six.
    for (blocks, rows) in [(0, 0), (1, 5)] {
        let sent = head_bytes + blocks * HASH_BLOCK_BYTES as usize;
        let loaded = load(&planned, &response[..sent], 1 << 20, NODES).await.expect("whole blocks");
        assert!(loaded == data[..rows * row_bytes], "{blocks} blocks contain {rows} rows");
    }
    let all = load(&planned, &response, 1 << 20, NODES).await.expect("all blocks");
    assert!(all == data);
}
