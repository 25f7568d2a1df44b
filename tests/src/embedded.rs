//! Runs a job in this process, for tests that inspect batches.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Int32Type;
use feedline_client::{Batch, ClientSettings, Job, WorkerDirectory};
use feedline_coordinator::CoordinatorSettings;
use feedline_data::ids::{SessionId, WorkerId};
use feedline_data::messages::{JobSpec, ServiceError, ServiceErrorKind, WorkerAddress};
use feedline_data::pipeline::Pipeline;
use feedline_proto::WorkerService;
use feedline_worker::{ObjectAccess, ProcessClock, WorkerSettings};

/// A directory with one worker for every address.
pub struct OneWorker(pub Arc<dyn WorkerService>);

impl WorkerDirectory for OneWorker {
    fn worker(&self, _address: &WorkerAddress) -> Result<Arc<dyn WorkerService>, ServiceError> {
        Ok(Arc::clone(&self.0))
    }
}

/// Returns the settings of a worker with two cores, this much memory and no cache on disk or in a store.
pub fn worker_settings(memory_bytes: u64) -> WorkerSettings {
    WorkerSettings {
        machine: String::new(),
        nic_bytes_per_s: 0,
        address: "local:0".to_owned(),
        tls_name: None,
        pool: String::new(),
        cores: 2,
        memory_bytes,
        graph_memory_bytes: memory_bytes / 2,
        graph_disk: None,
        access: ObjectAccess::default(),
        cache_dir: None,
        row_cache: None,
        store_cache: None,
        max_fetches: feedline_worker::DEFAULT_MAX_FETCHES,
        requires_tickets: false,
        functions: None,
        trace: true,
    }
}

/// Runs a pipeline once on one worker with two cores, and passes each batch to `take`.
pub fn for_each_batch(directory: &Path, pipeline: &str, take: impl FnMut(&RecordBatch)) {
    for_each_batch_through(directory, pipeline, |worker| worker, take);
}

/// Like [`for_each_batch`], but the consumer uses the service that `wrap` returns.
pub fn for_each_batch_through(
    directory: &Path,
    pipeline: &str,
    wrap: impl FnOnce(Arc<dyn WorkerService>) -> Arc<dyn WorkerService>,
    take: impl FnMut(&RecordBatch),
) {
    let pipeline = Pipeline::from_yaml(pipeline, "test.yaml").expect("the pipeline of the test is valid");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(run(directory, pipeline, wrap, take));
}

async fn run(
    directory: &Path,
    pipeline: Pipeline,
    wrap: impl FnOnce(Arc<dyn WorkerService>) -> Arc<dyn WorkerService>,
    mut take: impl FnMut(&RecordBatch),
) {
    let settings = CoordinatorSettings::in_memory(directory.join("index"));
    let coordinator = feedline_coordinator::start(settings, 1).await.expect("the directory is writable");
    let (settings, clock) = (worker_settings(256 << 20), ProcessClock::new());
    let worker =
        feedline_worker::start(WorkerId(1), settings, clock, coordinator.service()).expect("threads start");
    let spec = JobSpec::new(pipeline);
    let workers = Arc::new(OneWorker(wrap(worker.service())));
    let job = Job::open(coordinator.service(), workers, spec, ClientSettings::default())
        .await
        .expect("the job is valid");
    let mut consumer = job.consumer(0, SessionId(1));
    while let Some(batch) = consumer.next().await.expect("the job does not fail") {
        take(&batch.records);
    }
    consumer.close().await.expect("the coordinator runs");
    worker.shutdown().await;
    coordinator.shutdown().await.expect("its log is in memory");
}

/// Returns the values of a list column of `int32`, row by row.
pub fn int_lists(records: &RecordBatch, column: &str) -> Vec<Vec<i32>> {
    let lists = records.column_by_name(column).expect("the column exists").as_list::<i32>();
    (0..lists.len()).map(|row| lists.value(row).as_primitive::<Int32Type>().values().to_vec()).collect()
}

/// Returns the bytes of a `uint8` tensor column, row by row.
pub fn tensor_bytes(records: &RecordBatch, column: &str) -> Vec<u8> {
    let tensors = records.column_by_name(column).expect("the column exists").as_fixed_size_list();
    tensors.values().as_primitive::<arrow::datatypes::UInt8Type>().values().to_vec()
}

/// Returns the values of a text column.
pub fn texts(records: &RecordBatch, column: &str) -> Vec<String> {
    let texts = records.column_by_name(column).expect("the column exists").as_string::<i32>();
    texts.iter().map(|text| text.unwrap_or_default().to_owned()).collect()
}

/// Workers of a coordinator in this process, by their addresses.
struct LocalWorkers(std::collections::BTreeMap<String, Arc<dyn WorkerService>>);

impl WorkerDirectory for LocalWorkers {
    fn worker(&self, address: &WorkerAddress) -> Result<Arc<dyn WorkerService>, ServiceError> {
        let unknown = || ServiceError::new(ServiceErrorKind::NotFound, format!("unknown worker {address}"));
        self.0.get(&address.url).cloned().ok_or_else(unknown)
    }
}

/// Runs a job with one consumer, which owns all virtual consumers, on several workers. Returns the batches in the order of
/// delivery.
pub fn batches_of(directory: &Path, pipeline: &str, virtual_consumers: u32, workers: u64) -> Vec<Batch> {
    let pipeline = Pipeline::from_yaml(pipeline, "test.yaml").expect("the pipeline of the test is valid");
    let spec = JobSpec { virtual_consumers, audit: true, ..JobSpec::new(pipeline) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(collect(directory, spec, workers))
}

async fn collect(directory: &Path, spec: JobSpec, workers: u64) -> Vec<Batch> {
    let settings = CoordinatorSettings::in_memory(directory.join("index"));
    let coordinator = feedline_coordinator::start(settings, 1).await.expect("the directory is writable");
    let mut services = std::collections::BTreeMap::new();
    let mut started = Vec::new();
    for number in 1..=workers {
        let address = format!("local:{number}");
        let settings = WorkerSettings { address: address.clone(), ..worker_settings(256 << 20) };
        let worker =
            feedline_worker::start(WorkerId(number), settings, ProcessClock::new(), coordinator.service())
                .expect("threads start");
        services.insert(address, worker.service());
        started.push(worker);
    }
    let job =
        Job::open(coordinator.service(), Arc::new(LocalWorkers(services)), spec, ClientSettings::default())
            .await;
    let mut consumer = job.expect("the job is valid").consumer(0, SessionId(1));
    let mut batches = Vec::new();
    while let Some(batch) = consumer.next().await.expect("the job does not fail") {
        batches.push(batch);
    }
    consumer.close().await.expect("the coordinator runs");
    for worker in started {
        worker.shutdown().await;
    }
    coordinator.shutdown().await.expect("its log is in memory");
    batches
}
