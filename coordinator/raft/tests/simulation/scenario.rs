//! The scenario of a seed: a dataset, a job, workers, consumers and faults.

use std::rc::Rc;

use feedline_data::checkpoint::Position;
use feedline_data::graph::description::GraphHash;
use feedline_data::graph::{FeatureSummary, GraphSummary, NodeTypeSummary, RelationSummary};
use feedline_data::layout::{Layout, SplitRef};
use feedline_data::manifest::{Block, Manifest, Shard, ShardIndex, ShardRef};
use feedline_data::messages::JobSpec;
use feedline_data::order::{BlockTable, PassOrder};
use feedline_data::pipeline::{BatchParams, OperatorKind, OrderMode, Pipeline, Remainder, Source};
use feedline_data::random::mix64;
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use super::dice::Dice;

/// The faults of a run and their frequencies.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    pub(crate) drop_per_mille: u64,
    pub(crate) duplicate_per_mille: u64,
    /// Messages that are so slow that later messages overtake them.
    pub(crate) slow_per_mille: u64,
    pub(crate) coordinator_crashes: u64,
    pub(crate) coordinator_cuts: u64,
    pub(crate) coordinator_stalls: u64,
    /// Leader transfers; some of the old leaders shut down.
    pub(crate) hand_overs: u64,
    pub(crate) disk_failures: u64,
    pub(crate) disk_hangs: u64,
    pub(crate) member_changes: u64,
    /// Maximum duration of a write to a coordinator's log.
    pub(crate) slow_disk_ms: u64,
    pub(crate) worker_crashes: u64,
    pub(crate) worker_stalls: u64,
    pub(crate) consumer_crashes: u64,
    /// Milliseconds after which there are no more faults.
    pub(crate) until: u64,
}

/// The coordinators.
#[derive(Debug, Clone)]
pub(crate) struct Machines {
    pub(crate) coordinators: u64,
    /// Spare hosts.
    pub(crate) spare: u64,
    /// Whether each incarnation of a coordinator has a different address.
    pub(crate) moves: bool,
    /// The rates of their clocks in thousandths.
    pub(crate) rates: [u64; 6],
    /// Bytes of the log before a compaction, and the entries that stay.
    pub(crate) compact_bytes: u64,
    pub(crate) kept_entries: u64,
    /// Number of lost disks.
    pub(crate) disk_losses: u64,
}

impl Machines {
    fn new(dice: &mut Dice) -> Self {
        Self {
            coordinators: dice.pick(&[1, 3, 3, 3, 5]),
            spare: 1,
            moves: dice.chance(200),
            rates: [(); 6].map(|()| dice.range(940, 1_060)),
            compact_bytes: dice.pick(&[500, 5_000, 8 << 20]),
            kept_entries: dice.pick(&[0, 5, 4_096]),
            disk_losses: u64::from(dice.chance(300)),
        }
    }
}

/// A run.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) machines: Machines,
    pub(crate) workers: u64,
    pub(crate) faults: Faults,
    /// Number of batches after which an application saves a checkpoint.
    pub(crate) checkpoint_every: u64,
    /// Number of splits that a consumer requests ahead.
    pub(crate) wants: u32,
    /// Jobs that run at the same time: one, or two.
    pub(crate) jobs: Vec<Rc<JobData>>,
    /// A split of the first job that crashes each worker that computes it.
    pub(crate) planted: Option<SplitRef>,
}

/// The data of a job. Both parts of a stopped and resumed run use the same data.
#[derive(Debug)]
pub(crate) struct JobData {
    pub(crate) spec: JobSpec,
    pub(crate) manifest: Manifest,
    pub(crate) layout: Layout,
    /// The filter removes one in this many rows; 0 if the filter removes no rows.
    removes: u64,
    /// The row sequence of each epoch: a number for each (pass, row).
    sequence: Vec<Vec<u64>>,
}

impl JobData {
    /// A job that samples a graph for the same rows. A batch is then one record.
    fn sampling(&self) -> Self {
        let before = &self.spec.pipeline;
        let folder = before.source.url[0].trim_end_matches("/*").to_owned();
        let pipeline = Pipeline::builder(self.spec.name.clone())
            .source(Source::graph(folder.clone()))
            .seed(before.seed)
            .shuffle(before.shuffle.window)
            .order(before.order)
            .repeat(before.repeat_count())
            .sample_neighbors(before.batch_size(), &[1], &["x"])
            .build()
            .expect("a good pipeline");
        let manifest = graph_manifest(&self.manifest, &folder);
        let mut dataset = manifest.summary();
        dataset.batch_bytes = pipeline.expected_batch_bytes(&dataset);
        let layout = Layout::new(&pipeline, &dataset, self.spec.epochs, self.spec.virtual_consumers);
        let spec = JobSpec { pipeline, ..self.spec.clone() };
        Self { spec, manifest, layout, removes: 0, sequence: self.sequence.clone() }
    }

    /// The rows of a range of a split.
    pub(crate) fn rows(&self, split: SplitRef, from: u32, to: u32) -> &[u64] {
        let start = self.layout.split_range(split).start as usize;
        &self.sequence[split.epoch as usize][start + from as usize..start + to as usize]
    }

    /// Whether a row passes the filter.
    pub(crate) fn keeps(&self, row: u64) -> bool {
        self.removes == 0 || !mix64(row ^ self.spec.pipeline.seed).is_multiple_of(self.removes)
    }

    /// All rows of an epoch, in the order of the layout.
    pub(crate) fn epoch_rows(&self, epoch: u32) -> Vec<u64> {
        let mut rows = Vec::new();
        for stream in 0..self.layout.streams {
            rows.extend(self.stream_rows(epoch, stream));
        }
        rows
    }

    /// The input rows of a stream in one epoch, computed from the layout alone.
    pub(crate) fn stream_rows(&self, epoch: u32, stream: u32) -> Vec<u64> {
        let mut rows = Vec::new();
        for ordinal in 0..self.layout.splits(stream) {
            let split = SplitRef { epoch, ordinal, stream };
            rows.extend_from_slice(self.rows(split, 0, self.layout.split_len(split)));
        }
        rows
    }
}

impl Scenario {
    /// The run of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let has_two = dice.chance(200);
        // Two jobs take about as long as one larger job.
        let sizes = if has_two { &[0, 10, 40][..] } else { &[0, 10, 40, 80, 120][..] };
        let consumers = dice.range(1, if has_two { 2 } else { 4 }) as u32;
        let virtual_consumers = dice.range(u64::from(consumers), 8) as u32;
        let manifest = build_manifest(&mut dice, "data", sizes, u64::from(virtual_consumers));
        let first = Naming { name: "run", folder: "data" };
        let mut jobs = vec![build_job(&mut dice, first, manifest, consumers, virtual_consumers)];
        if has_two {
            let second = build_second(&mut dice, &jobs[0], sizes);
            jobs.push(second);
        }
        let calm = dice.chance(100);
        let faults = if calm { Faults::default() } else { build_faults(&mut dice) };
        Self {
            seed,
            machines: Machines::new(&mut Dice::new(seed ^ 0xC0DE)),
            workers: dice.range(1, 5),
            faults,
            checkpoint_every: dice.pick(&[1, 1, 2, 4]),
            wants: dice.range(1, 4) as u32,
            jobs: jobs.into_iter().map(Rc::new).collect(),
            planted: None,
        }
    }

    /// The same run with a split that crashes its workers.
    pub(crate) fn with_planted_split(mut self) -> Self {
        let layout = &self.jobs[0].layout;
        let mut dice = Dice::new(self.seed ^ 0xDEAD);
        let stream = dice.range(0, u64::from(layout.streams) - 1) as u32;
        let last = layout.splits(stream).saturating_sub(1);
        self.planted = Some(SplitRef { epoch: 0, ordinal: dice.range(0, last), stream });
        self
    }

    /// The same run with jobs that sample a graph, which workers load before they compute batches.
    pub(crate) fn sampling(self) -> Self {
        let jobs = self.jobs.iter().map(|job| Rc::new(job.sampling())).collect();
        Self { jobs, ..self }
    }

    /// The same run with only its first job.
    pub(crate) fn of_one_job(mut self) -> Self {
        self.jobs.truncate(1);
        self
    }

    /// A run that resumes the only job at a position, with different workers and consumers.
    pub(crate) fn resumed(&self, start: Position) -> Self {
        let mut dice = Dice::new(self.seed ^ 0xBEEF);
        let before = &self.jobs[0];
        let mut spec = before.spec.clone();
        spec.consumers = dice.range(1, u64::from(spec.virtual_consumers.min(4))) as u32;
        spec.start = Some(start);
        let job = JobData {
            spec,
            manifest: before.manifest.clone(),
            layout: before.layout.clone(),
            removes: before.removes,
            sequence: before.sequence.clone(),
        };
        Self { seed: self.seed ^ 0xBEEF, workers: dice.range(1, 5), jobs: vec![Rc::new(job)], ..self.clone() }
    }
}

/// The properties of a job.
#[derive(Clone, Copy)]
struct Naming {
    name: &'static str,
    folder: &'static str,
}

/// A second job, on the same dataset or on another dataset.
fn build_second(dice: &mut Dice, first: &JobData, sizes: &[u64]) -> JobData {
    let shares = dice.chance(300);
    let folder = if shares { "data" } else { "more" };
    let most = if shares { first.manifest.summary().rows.min(8) } else { 8 };
    let consumers = dice.range(1, most.min(2)) as u32;
    let virtual_consumers = dice.range(u64::from(consumers), most) as u32;
    let manifest = if shares {
        first.manifest.clone()
    } else {
        build_manifest(dice, folder, sizes, u64::from(virtual_consumers))
    };
    build_job(dice, Naming { name: "second", folder }, manifest, consumers, virtual_consumers)
}

fn build_manifest(dice: &mut Dice, folder: &str, sizes: &[u64], rows_at_least: u64) -> Manifest {
    let mut schema = Schema::default();
    schema.set("label", ColumnType::Scalar(ScalarType::Int64));
    let mut shards = Vec::new();
    let mut left = rows_at_least + dice.pick(sizes) + dice.range(0, 20);
    while left > 0 {
        let mut blocks = Vec::new();
        for _ in 0..dice.range(1, 5) {
            let rows = dice.range(1, 15).min(left);
            if rows > 0 {
                blocks.push(Block {
                    rows: rows as u32,
                    offset: 0,
                    bytes: 100 * rows,
                    group: 0,
                    row_bytes: Vec::new(),
                });
            }
            left -= rows;
        }
        let object = ShardRef {
            url: format!("file:///{folder}/{}", shards.len()),
            size_bytes: dice.range(1, 100 << 20),
            version: "1".to_owned(),
            ..ShardRef::default()
        };
        let index =
            ShardIndex { blocks, schema: Some(schema.clone()), defects: Vec::new(), ..ShardIndex::default() };
        shards.push(Shard::simulated(object, index));
    }
    Manifest::build(shards).expect("the shards agree")
}

/// The same rows as the seeds of a graph.
fn graph_manifest(rows: &Manifest, folder: &str) -> Manifest {
    let relation = RelationSummary {
        source: "n".to_owned(),
        name: "e".to_owned(),
        target: "n".to_owned(),
        edges: 1 << 20,
        undirected: false,
        has_weights: false,
        has_times: false,
        features: Vec::new(),
    };
    let feature = FeatureSummary {
        name: "x".to_owned(),
        dtype: ScalarType::Float32,
        shape: vec![1 << 14],
        content: GraphHash(1),
    };
    let graph = GraphSummary {
        topology: GraphHash(2),
        nodes: vec![NodeTypeSummary { name: "n".to_owned(), count: 1 << 16, features: vec![feature] }],
        relations: vec![relation],
        seeds: Vec::new(),
    };
    let schema = Schema::new([("node", ColumnType::Scalar(ScalarType::UInt32))]);
    let seeds = |shard: &Shard| {
        let index = ShardIndex {
            schema: Some(schema.clone()),
            blocks: shard.index.blocks.clone(),
            ..ShardIndex::default()
        };
        Shard::simulated(shard.object.clone(), index)
    };
    let object = ShardRef {
        url: format!("file:///{folder}/graph.json"),
        size_bytes: 1,
        version: "1".to_owned(),
        ..ShardRef::default()
    };
    let index = ShardIndex { graph: Some(Box::new(graph)), ..ShardIndex::default() };
    let description = Shard::simulated(object, index);
    Manifest::build(rows.shards.iter().map(seeds).chain([description]).collect()).expect("the shards agree")
}

fn build_job(
    dice: &mut Dice,
    Naming { name, folder }: Naming,
    manifest: Manifest,
    consumers: u32,
    virtual_consumers: u32,
) -> JobData {
    let order = dice.pick(&[OrderMode::Deterministic, OrderMode::Relaxed]);
    let removes = dice.pick(&[0, 0, 2, 3, 10]);
    let size = dice.range(1, 7) as u32;
    let epochs = dice.range(1, 3) as u32;
    let passes = dice.pick(&[1, 1, 1, 2]);
    let mut remainder = dice.pick(&[Remainder::Emit, Remainder::Drop, Remainder::Carry]);
    let (seed, window) = (dice.next() >> 1, dice.pick(&[0, 8, 1000]));
    let build = |remainder| {
        let mut builder = Pipeline::builder(name)
            .source(Source::text(format!("{folder}/*")))
            .seed(seed)
            .shuffle(window)
            .order(order)
            .repeat(passes);
        if removes > 0 {
            builder = builder.filter("label <> 3");
        }
        builder
            .operator(OperatorKind::Batch(BatchParams { size, remainder }))
            .build()
            .expect("a good pipeline")
    };
    let summary = manifest.summary();
    let mut layout = Layout::new(&build(remainder), &summary, epochs, virtual_consumers);
    if layout.dropped_rows() == layout.epoch_rows() {
        remainder = Remainder::Emit;
        layout = Layout::new(&build(remainder), &summary, epochs, virtual_consumers);
    }
    let spec = JobSpec {
        tenant: String::new(),
        name: name.to_owned(),
        pipeline: build(remainder),
        epochs,
        virtual_consumers,
        consumers,
        start: None,
        audit: true,
        reindex: dice.chance(100),
        accept_reuploaded: false,
        accept_changed_pipeline: false,
        index_only: false,
        weight: 1.0,
        elastic: false,
    };
    let table = BlockTable::new(&manifest);
    let mut sequence = Vec::new();
    for epoch in 0..epochs {
        let mut rows = Vec::new();
        for pass in epoch * passes..(epoch + 1) * passes {
            let order = PassOrder::new(&table, seed, pass, window);
            let refs = order.rows(&table, 0..table.rows());
            rows.extend(refs.iter().map(|row| u64::from(pass) * table.rows() + row.row_id));
        }
        sequence.push(rows);
    }
    JobData { spec, manifest, layout, removes, sequence }
}

/// The kind of coordinator faults in a run. With all kinds in one run, no fault would last long enough to have an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Theme {
    Crashes,
    HandOvers,
    Disks,
    Members,
    Everything,
}

fn build_faults(dice: &mut Dice) -> Faults {
    use Theme as T;
    let until = dice.range(2_000, 20_000);
    let theme = dice.pick(&[T::Crashes, T::Crashes, T::HandOvers, T::Disks, T::Members, T::Everything]);
    let mut often = |about: Theme, most: u64, otherwise: u64| {
        let most = if theme == about || theme == T::Everything { most } else { otherwise };
        dice.range(0, most)
    };
    let (crashes, cuts, stalls) = (often(T::Crashes, 4, 1), often(T::Crashes, 3, 1), often(T::Crashes, 2, 1));
    let (hand_overs, member_changes) = (often(T::HandOvers, 5, 0), often(T::Members, 4, 0));
    let (disk_failures, disk_hangs) = (often(T::Disks, 3, 0), often(T::Disks, 3, 0));
    Faults {
        drop_per_mille: dice.pick(&[0, 20, 100, 200]),
        duplicate_per_mille: dice.pick(&[0, 20, 100]),
        slow_per_mille: dice.pick(&[0, 50, 200]),
        coordinator_crashes: crashes,
        coordinator_cuts: cuts,
        coordinator_stalls: stalls,
        hand_overs,
        disk_failures,
        disk_hangs,
        member_changes,
        slow_disk_ms: dice.pick(&[3, 3, 30, 300]),
        worker_crashes: dice.range(0, 4),
        worker_stalls: dice.range(0, 4),
        consumer_crashes: dice.range(0, 4),
        until,
    }
}
