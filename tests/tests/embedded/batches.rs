//! The embedded mode through the library: the content of batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use feedline_data::messages::ServiceError;
use feedline_proto::WorkerService;
use feedline_proto::services::{FetchRequest, Frame};
use feedline_tests::{Scratch, embedded};
use futures::StreamExt;
use futures::stream::BoxStream;

#[test]
fn lines_are_delivered_in_storage_order_in_full_batches() {
    let scratch = Scratch::new();
    let lines: Vec<String> = (0..1000).map(|number| format!("line {number}")).collect();
    let file = scratch.write("lines.txt", &lines.join("\n"));
    let pipeline =
        format!("name: lines\nsource: {{ url: {file}, format: text }}\noperators: [ batch: {{ size: 64 }} ]");
    let (mut sizes, mut found) = (Vec::new(), Vec::new());
    embedded::for_each_batch(scratch.path(), &pipeline, |records| {
        sizes.push(records.num_rows());
        found.extend(embedded::texts(records, "text"));
    });
    assert_eq!(found, lines);
    assert_eq!(sizes.len(), 16);
    assert!(sizes[..15].iter().all(|&size| size == 64));
}

/// A worker service that counts keep-alive frames.
struct Watched {
    inner: Arc<dyn WorkerService>,
    signs: Arc<AtomicU64>,
}

#[async_trait]
impl WorkerService for Watched {
    async fn fetch(
        &self,
        requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let frames = self.inner.fetch(requests).await?;
        let signs = Arc::clone(&self.signs);
        let count = move |frame: &Result<Frame, ServiceError>| {
            signs.fetch_add(u64::from(matches!(frame, Ok(Frame::Working))), Ordering::Relaxed);
        };
        Ok(frames.inspect(count).boxed())
    }
}

#[test]
fn a_consumer_that_waits_for_slow_rows_receives_keep_alive_frames() {
    let scratch = Scratch::new();
    let file = scratch.write("lines.txt", "one\ntwo\nthree\nfour");
    let pipeline = format!(
        "name: slow\nsource: {{ url: {file}, format: text }}\noperators: [ wait: {{ ms: 800, parallelism: 1 }}, batch: {{ size: 4 }} ]"
    );
    let signs = Arc::new(AtomicU64::new(0));
    let watch = |inner| -> Arc<dyn WorkerService> { Arc::new(Watched { inner, signs: Arc::clone(&signs) }) };
    let mut rows = 0;
    embedded::for_each_batch_through(scratch.path(), &pipeline, watch, |records| rows += records.num_rows());
    // 3.2 s without a row, with a keep-alive frame every second.
    assert_eq!(rows, 4);
    assert!(signs.load(Ordering::Relaxed) >= 2, "{signs:?}");
}
