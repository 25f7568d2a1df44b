//! Golden values of everything that determines rows and positions: layouts, orders, mixes, random draws, steps of
//! coordinated batches and fingerprints. Saved positions are valid only while these values do not change.
//!
//! `UPDATE_EXPECT=1 cargo test -p feedline-data --test golden` rewrites the file.

use std::fmt::Write;
use std::ops::Range;

use expect_test::expect_file;
use feedline_data::compression::{AccessPoint, Codec, ShardCompression};
use feedline_data::coordinated::{CoordinatedStep, deal_buckets, deal_evenly, pack_rows};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::manifest::{Block, Manifest, Shard, ShardIndex, ShardRef};
use feedline_data::mix::MixChange;
use feedline_data::order::{BlockTable, PassOrder, RowRef};
use feedline_data::permutation::Permutation;
use feedline_data::pipeline::Pipeline;
use feedline_data::random::{RowRandom, mix64};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use feedline_data::sequence::Sequence;

/// A hash of a sequence of numbers.
fn digest(numbers: impl IntoIterator<Item = u64>) -> String {
    format!(
        "{:016x}",
        numbers.into_iter().fold(0, |digest: u64, number| mix64(digest.rotate_left(1) ^ number))
    )
}

fn digest_rows(rows: &[RowRef]) -> String {
    let fields = |row: &RowRef| {
        [row.row_id, u64::from(row.pass), u64::from(row.shard), u64::from(row.block), u64::from(row.row)]
    };
    digest(rows.iter().flat_map(fields))
}

/// Shards of several blocks. The shards of `part` have `rows` rows in total, each of `row_bytes`.
fn shards(part: u32, rows: u64, row_bytes: u64) -> Vec<Shard> {
    let mut schema = Schema::default();
    schema.set("label", ColumnType::Scalar(ScalarType::Int64));
    let mut left = rows;
    let mut shards = Vec::new();
    while left > 0 {
        let number = shards.len() as u64;
        let mut blocks = Vec::new();
        for block in 0..1 + number % 4 {
            let rows = (1 + mix64(number * 8 + block) % (1 + rows / 10)).min(left);
            if rows > 0 {
                let (rows, bytes) = (rows as u32, rows * row_bytes);
                blocks.push(Block { rows, offset: block, bytes, group: 0, row_bytes: Vec::new() });
            }
            left -= rows;
        }
        let object = ShardRef {
            url: format!("file:///data-{part}/{number}"),
            size_bytes: 1_000_000,
            version: "1".to_owned(),
            part,
            ..ShardRef::default()
        };
        let index =
            ShardIndex { blocks, schema: Some(schema.clone()), defects: Vec::new(), ..ShardIndex::default() };
        shards.push(Shard::new(object, index));
    }
    shards
}

fn manifest(rows: u64, row_bytes: u64) -> Manifest {
    Manifest::build(shards(0, rows, row_bytes)).expect("the shards agree")
}

fn pipeline(yaml: &str) -> Pipeline {
    Pipeline::from_yaml(yaml, "golden.yaml").expect("the pipeline is right")
}

fn plain(head: &str, operators: &str) -> String {
    format!(
        "name: golden\nsource: {{ url: file:///data, format: text }}\nseed: 5\n{head}\noperators: [ {operators} ]\n"
    )
}

/// Pipelines that together use every setting that layouts depend on.
fn pipelines() -> Vec<String> {
    let mut pipelines = Vec::new();
    for window in [0, 64, 10_000] {
        let shuffle = format!("shuffle: {{ window: {window} }}");
        pipelines.push(plain(&shuffle, "batch: { size: 7 }"));
        pipelines.push(plain(&shuffle, "repeat: { count: 3 }, batch: { size: 128, remainder: drop }"));
    }
    pipelines.push(plain("order: relaxed", "batch: { size: 16, remainder: carry }"));
    pipelines.push(plain("on_error: skip", "batch: { size: 16, remainder: carry }"));
    pipelines.push(plain("", "filter: { where: \"length(text) > 4\" }, batch: { size: 16 }"));
    let lists = "tokenize: { column: text, tokenizer: tokenizer.json }, ";
    for coordinated in [
        "bucket_by_length: { columns: [text], boundaries: [10, 40], tokens: 160 }",
        "bucket_by_length: { columns: [text], boundaries: [10, 40], batch_sizes: [16, 4], window: 250 }",
        "pack: { columns: [text], length: 64, size: 4 }",
    ] {
        pipelines.push(plain("", &format!("{lists}{coordinated}")));
    }
    pipelines
}

fn write_layouts(out: &mut String) {
    for (number, yaml) in pipelines().iter().enumerate() {
        let pipeline = pipeline(yaml);
        writeln!(out, "pipeline {number}: fingerprint {}", pipeline.fingerprint()).expect("text grows");
        for (rows, row_bytes) in [(1, 100), (1_003, 20), (250_000, 100), (50_000, 100_000)] {
            let summary = manifest(rows, row_bytes).summary();
            for streams in [1, 2, 5, 64] {
                let layout = Layout::new(&pipeline, &summary, 3, streams);
                let cuts = digest((0..layout.streams).flat_map(|stream| cuts(&layout, stream)));
                let json = serde_json::to_string(&layout).expect("a layout has a JSON form");
                let (drops, steps) = (layout.dropped_rows(), layout.steps());
                writeln!(out, "layout {number} {rows}x{row_bytes} {streams}: {json} drops {drops} steps {steps:?} cuts {cuts}")
                    .expect("text grows");
            }
        }
    }
}

/// The rows of a stream's first splits and last splits, and the locations of positions in them.
fn cuts(layout: &Layout, stream: u32) -> Vec<u64> {
    let splits = layout.splits(stream);
    let mut numbers = vec![splits, layout.stream_rows(stream)];
    for ordinal in (0..splits.min(20)).chain(splits.saturating_sub(3)..splits) {
        let split = SplitRef { epoch: 1, ordinal, stream };
        let range = layout.split_range(split);
        let middle = layout.position_in(split, layout.split_len(split) / 2);
        numbers.extend([range.start, range.end, u64::from(layout.split_len(split)), middle.row]);
        numbers.extend([u64::from(middle.epoch), layout.step_of(middle).unwrap_or(u64::MAX)]);
        let located = layout.locate(stream, StreamPosition { epoch: 1, row: middle.row });
        numbers.extend(located.iter().flat_map(|(split, offset)| [split.ordinal, u64::from(*offset)]));
    }
    numbers
}

fn write_orders(out: &mut String) {
    for len in [1, 2, 10, 1_000, 65_537] {
        let permutation = Permutation::new(len, 77);
        let images = digest((0..len).map(|index| permutation.apply(index)));
        writeln!(out, "permutation {len}: {images}").expect("text grows");
    }
    for rows in [1, 1_003, 20_000] {
        let manifest = manifest(rows, 20);
        writeln!(out, "dataset {rows}: fingerprint {}", manifest.fingerprint()).expect("text grows");
        let table = BlockTable::new(&manifest);
        for (seed, pass, window) in [(0, 0, 0), (5, 0, 64), (5, 1, 64), (6, 7, 1_000), (u64::MAX, 3, 1 << 40)]
        {
            let order = PassOrder::new(&table, seed, pass, window);
            let all = order.rows(&table, 0..rows);
            let first: Vec<u64> = all.iter().take(8).map(|row| row.row_id).collect();
            let digest = digest_rows(&all);
            writeln!(out, "order {rows} seed {seed} pass {pass} window {window}: {first:?} {digest}")
                .expect("text grows");
        }
    }
}

fn write_mixes(out: &mut String) {
    let shards = [shards(0, 700, 20), shards(1, 200, 20), shards(2, 90, 20)].concat();
    let manifest = Manifest::build(shards).expect("the shards agree");
    let change = |pass, place, weights: [f64; 3]| MixChange { pass, offset: place, weights: weights.into() };
    let changes = [change(0, 100, [1.0, 1.0, 1.0]), change(1, 17, [0.5, 3.0, 2.25])];
    for stop in ["all", "first", "restart"] {
        for weights in [[1.0, 1.0, 1.0], [5.0, 1.5, 0.25]] {
            let part = |number: usize| {
                format!("    - {{ weight: {}, url: file:///data-{number}, format: text }}\n", weights[number])
            };
            let parts: String = (0..3).map(part).collect();
            let yaml = format!(
                "name: golden\nsource:\n  mix:\n{parts}  stop: {stop}\nseed: 5\nshuffle: {{ window: 32 }}\noperators: [ batch: {{ size: 7 }} ]\n"
            );
            let pipeline = pipeline(&yaml);
            let rows = pipeline.pass_rows(&manifest.summary());
            let fingerprint = pipeline.fingerprint();
            writeln!(out, "mix until {stop} {weights:?}: {rows} rows, fingerprint {fingerprint}")
                .expect("text grows");
            for changes in [&[][..], &changes[..if stop == "first" { 0 } else { 2 }]] {
                let layout = Layout::new(&pipeline, &manifest.summary(), 1, 1);
                let layout = Layout { mix_changes: changes.to_vec(), ..layout };
                write_mix(out, &Sequence::new(&pipeline, &manifest, &layout), 0..rows);
            }
        }
    }
}

fn write_mix(out: &mut String, sequence: &Sequence, places: Range<u64>) {
    for pass in 0..3 {
        let rows = sequence.rows(&sequence.pass(pass), places.clone());
        let first: Vec<u64> = rows.iter().take(8).map(|row| row.row_id).collect();
        let changes = sequence.changes().len();
        writeln!(out, "  {changes} changes pass {pass}: {first:?} {}", digest_rows(&rows))
            .expect("text grows");
    }
}

/// Compressed shards of 6 blocks. With `has_points`, each block begins at an access point.
fn compressed_shards(part: u32, count: usize, has_points: bool) -> Vec<Shard> {
    let mut shards = shards(part, 400 * count as u64, 50_000);
    shards.truncate(count);
    for shard in &mut shards {
        let rows = 40 + mix64(shard.object.url.len() as u64) as u32 % 30;
        let offset = |block: u32| u64::from(block * rows) * 50_000;
        let block = |block: u32| Block {
            rows,
            offset: offset(block),
            bytes: offset(1),
            group: 0,
            row_bytes: Vec::new(),
        };
        shard.index.blocks = (0..6).map(block).collect();
        let point = |block: u32| AccessPoint {
            bit_offset: 8 * offset(block),
            content_offset: offset(block),
            state: Vec::new(),
        };
        let points = (1..6).map(point).filter(|_| has_points).collect();
        let (content_bytes, decoder_bytes) = (offset(6), 1 << 20);
        let compression =
            ShardCompression { codec: Codec::Zstd, content_bytes, readable_bytes: 9, decoder_bytes, points };
        shard.index.compression = Some(compression);
    }
    shards
}

/// Datasets with access points, with long runs, and mixes of them.
fn write_compressed(out: &mut String) {
    let (points, runs) =
        (|part| compressed_shards(part, 40, true), |part| compressed_shards(part, 24, false));
    let single = "url: file:///data, format: text".to_owned();
    let part = |part| format!("{{ weight: {}, url: file:///data-{part}, format: text }}", 3 - part);
    let mix = format!("mix: [ {}, {} ]", part(0), part(1));
    for (name, source, shards) in [
        ("points", &single, points(0)),
        ("runs", &single, runs(0)),
        ("both", &single, [points(0), runs(0)].concat()),
        ("mix of points", &mix, [points(0), points(1)].concat()),
        ("mix of runs", &mix, [runs(0), runs(1)].concat()),
    ] {
        let manifest = Manifest::build(shards).expect("the shards agree");
        for (window, operators) in [
            (0, "batch: { size: 7 }"),
            (50, "batch: { size: 7 }"),
            (50, "repeat: { count: 2 }, batch: { size: 7 }"),
            (2_000, "pack: { columns: [text], length: 64, size: 4, window: 500 }"),
        ] {
            let pipeline = pipeline(&format!(
                "name: golden\nsource: {{ {source} }}\nseed: 5\nshuffle: {{ window: {window} }}\noperators: [ {operators} ]\n"
            ));
            let summary = manifest.summary();
            let layout = Layout::new(&pipeline, &summary, 1, 2);
            let json = serde_json::to_string(&layout).expect("a layout has a JSON form");
            let split = |ordinal| SplitRef { epoch: 0, ordinal, stream: 0 };
            let keys = (0..layout.splits(0))
                .map(|ordinal| layout.run_key(&summary, split(ordinal)).unwrap_or(u64::MAX));
            writeln!(out, "compressed {name}: {json} keys {}", digest(keys)).expect("text grows");
            write_mix(out, &Sequence::new(&pipeline, &manifest, &layout), 0..layout.dataset_rows);
        }
    }
}

fn write_draws(out: &mut String) {
    for (seed, operator, pass, row) in
        [(0, 0, 0, 0), (5, 1, 0, 7), (5, 2, 0, 7), (5, 1, 3, 7), (u64::MAX, 9, 1, 1 << 40)]
    {
        let draws = || RowRandom::new(seed, operator, pass, row);
        let (mut bits, mut units, mut between, mut below) = (draws(), draws(), draws(), draws());
        let bits: Vec<u32> = (0..6).map(|_| bits.next_u32()).collect();
        let units: Vec<f64> = (0..3).map(|_| units.next_f64()).collect();
        let between: Vec<f64> = (0..3).map(|_| between.uniform(-2.0, 3.5)).collect();
        let below: Vec<u32> = [1, 2, 7, 1_000, u32::MAX].map(|bound| below.below(bound)).into();
        writeln!(out, "draws {seed} {operator} {pass} {row}: {bits:?} {units:?} {between:?} {below:?}")
            .expect("text grows");
    }
}

fn write_steps(out: &mut String) {
    let lengths: Vec<u32> = (0..400).map(|row| 1 + (mix64(row) % 60) as u32).collect();
    for streams in [1, 2, 5] {
        let steps = deal_buckets(&lengths, &[10, 30], &[16, 6, 3], streams);
        writeln!(out, "buckets {streams}: {} steps {}", steps.len(), digest_steps(&steps))
            .expect("text grows");
        let steps = deal_evenly(333, 8, streams);
        writeln!(out, "even {streams}: {} steps {}", steps.len(), digest_steps(&steps)).expect("text grows");
    }
    for (columns, length) in [(1, 64), (2, 100)] {
        let packed = pack_rows(&lengths, columns, length);
        writeln!(out, "packed {columns} {length}: {} rows {}", packed.len(), digest(lists(&packed)))
            .expect("text grows");
    }
}

fn digest_steps(steps: &[CoordinatedStep]) -> String {
    let mut numbers = Vec::new();
    for step in steps {
        numbers.push(step.bucket as u64);
        numbers.extend(lists(&step.streams));
    }
    digest(numbers)
}

/// Flattens lists: the length of each list, then its numbers.
fn lists(lists: &[Vec<u32>]) -> impl Iterator<Item = u64> {
    let numbers = |list: &Vec<u32>| [&[list.len() as u32], list.as_slice()].concat();
    lists.iter().flat_map(numbers).map(u64::from)
}

#[test]
fn layouts_orders_and_draws_are_golden() {
    let mut out = String::new();
    write_layouts(&mut out);
    write_orders(&mut out);
    write_mixes(&mut out);
    write_compressed(&mut out);
    write_draws(&mut out);
    write_steps(&mut out);
    expect_file!["golden.txt"].assert_eq(&out);
}
