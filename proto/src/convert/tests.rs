//! Tests of round trips of all messages, and of errors for missing or unknown values.

use std::fmt::Debug;

use feedline_data::checkpoint::Position;
use feedline_data::graph::description::GraphHash;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobState, JobStatus, WorkerPlan,
    WorkerReport,
};
use feedline_data::pipeline::{
    MapFunction, Mix, MixPart, MixStop, OperatorKind, Pipeline, RandomHorizontalFlip, Source,
};
use feedline_data::view::Bottleneck;
use feedline_data::view::ClusterView;
use proptest::prelude::*;
use prost::Message;

use super::dataset::{decode_manifest, encode_manifest};
use super::{Wire, samples};
use crate::batch::{BatchLayout, OmittedColumn, OmittedRows, output_schema};
use crate::services::{
    CachedFeature, FeatureRowsRequest, FetchOpen, FetchRequest, Frame, GatherRequest, PieceHeader, SkippedRow,
};
use crate::wire;

fn check<C, W>(value: C)
where
    C: Clone + Debug + PartialEq + Wire<W>,
    W: Message + Default,
{
    let message: W = value.clone().into_wire();
    let received = W::decode(message.encode_to_vec().as_slice()).unwrap();
    assert_eq!(C::from_wire(received, "test").unwrap(), value);
}

/// Returns the error of decoding a message.
fn error_of<C: Debug + Wire<W>, W>(message: W) -> String {
    C::from_wire(message, "test").unwrap_err().to_string()
}

#[test]
fn control_messages_survive_a_round_trip() {
    check::<JobSpec, wire::JobSpec>(samples::spec());
    check::<JobSpec, wire::JobSpec>(JobSpec { start: None, ..samples::spec() });
    check::<Source, wire::Source>(samples::mixed());
    let filtered = Source { shard_filter: Some("year = 2024".to_owned()), ..samples::source() };
    check::<Source, wire::Source>(filtered);
    let of_graph = Source { graph: Some("s3://bucket/graph/".to_owned()), ..samples::source() };
    check::<Source, wire::Source>(of_graph);
    let nested = Mix { parts: vec![MixPart { weight: 1.0, source: samples::mixed() }], stop: MixStop::All };
    let nested: wire::Source = Source::mixed(nested).into_wire();
    assert!(error_of::<Source, _>(nested).contains("itself a mix"));
    check::<Position, wire::Position>(samples::position());
    check::<WorkerReport, wire::WorkerReport>(samples::worker_report());
    check::<WorkerPlan, wire::WorkerPlan>(samples::worker_plan());
    check::<ConsumerReport, wire::ConsumerReport>(samples::consumer_report());
    check::<ConsumerReport, wire::ConsumerReport>(ConsumerReport {
        batch_error: None,
        ..samples::consumer_report()
    });
    check::<ConsumerPlan, wire::ConsumerPlan>(samples::consumer_plan());
    let plan = ConsumerPlan { layout: None, slots: None, ..samples::consumer_plan() };
    check::<ConsumerPlan, wire::ConsumerPlan>(plan);
    check::<JobDetails, wire::JobDetails>(samples::job_details());
    check::<GroupPositions, wire::GroupPositions>(samples::group_positions());
    check::<JobStatus, wire::JobStatus>(samples::job_status());
    let bare = JobStatus { dataset: None, layout: None, position: None, ..samples::job_status() };
    check::<JobStatus, wire::JobStatus>(bare);
    check::<ClusterView, wire::ClusterView>(samples::cluster_view());
    check::<ClusterView, wire::ClusterView>(ClusterView::default());
    for kind in samples::bottleneck_kinds() {
        let bound = Bottleneck { kind, operator: None, rows_per_s: 1.5, explanation: "because".to_owned() };
        check::<Bottleneck, wire::Bottleneck>(bound);
    }
    for state in samples::job_states() {
        check::<JobState, wire::JobState>(state);
    }
}

#[test]
fn fetch_messages_survive_a_round_trip() {
    let open = FetchOpen {
        job: feedline_data::ids::JobId(5),
        split: samples::split(),
        start_offset: 9,
        credit_bytes: 1 << 30,
        ticket: "t".to_owned(),
        cached_features: vec![CachedFeature {
            column: "paper.x".to_owned(),
            content: GraphHash(u128::MAX - 2),
            rows: u32::MAX,
            row_bytes: 256,
        }],
    };
    check::<FetchRequest, wire::FetchRequest>(FetchRequest::Open(open));
    let job = feedline_data::ids::JobId(6);
    let features = FeatureRowsRequest { job, ticket: "t".to_owned(), content: GraphHash(3), rows: 9 };
    check::<FetchRequest, wire::FetchRequest>(FetchRequest::Features(features));
    check::<FetchRequest, wire::FetchRequest>(FetchRequest::Credit { bytes: 0 });
    for frame in frames() {
        let message = wire::FetchFrame::try_from(frame.clone()).unwrap();
        let received = wire::FetchFrame::decode(message.encode_to_vec().as_slice()).unwrap();
        assert_eq!(Frame::try_from(received).unwrap(), frame);
    }
}

#[test]
fn a_request_for_rows_survives_a_round_trip() {
    let request = GatherRequest {
        job: feedline_data::ids::JobId(5),
        feature: GraphHash(u128::MAX - 9),
        row_bytes: 512,
        rows: vec![0, 7, u32::MAX],
        ticket: "t".to_owned(),
    };
    check::<GatherRequest, wire::GatherRequest>(request.clone());
    let message = wire::GatherRequest { rows: vec![1; 7].into(), ..request.clone().into_wire() };
    let error = error_of::<GatherRequest, _>(message);
    assert_eq!(error, "cannot read `gather.rows`: 7 bytes are not whole numbers");
    let message = wire::GatherRequest { feature: "x".to_owned(), ..request.into_wire() };
    assert!(error_of::<GatherRequest, _>(message).starts_with("cannot read `gather.feature`: "));
}

fn frames() -> Vec<Frame> {
    let skipped = SkippedRow { row_id: 7, shard: "s3://a/b".into(), offset: 17, reason: "bad jpeg".into() };
    let batch = BatchLayout {
        rows: 2,
        total_bytes: 128,
        nodes: vec![(2, 0), (24, 1)],
        buffers: vec![(0, 0), (64, 24), (0, 3)],
    };
    let piece = PieceHeader {
        start: 3,
        end: 6,
        rows: 2,
        kept_offsets: Some(vec![3, 5]),
        row_ids: Some(vec![1, u64::MAX, 3]),
        skipped: vec![skipped],
        newest_ms: Some(1 << 41),
        indivisible: true,
        omitted_rows: None,
        batch,
    };
    let columns = vec![OmittedColumn { feature: 1, values_at: 1 << 33, rows: 7 }];
    let omitted_rows = Some(OmittedRows { sent_bytes: 90, columns });
    let incomplete = PieceHeader { omitted_rows, ..piece.clone() };
    let bare = PieceHeader { kept_offsets: Some(Vec::new()), row_ids: None, ..piece.clone() };
    vec![
        Frame::Schema(output_schema(&samples::schema())),
        Frame::Piece(piece),
        Frame::Piece(bare),
        Frame::Piece(incomplete),
        Frame::Piece(PieceHeader::default()),
        Frame::Chunk { offset: 64, data: "bytes".into() },
        Frame::Working,
        Frame::Failed("shard x at 17: bad jpeg".to_owned()),
        Frame::End,
    ]
}

#[test]
fn a_manifest_survives_a_round_trip() {
    let manifest = samples::manifest();
    assert_eq!(decode_manifest(&encode_manifest(&manifest)), Ok(manifest));
}

#[test]
fn a_corrupt_manifest_is_an_error() {
    let bytes = encode_manifest(&samples::manifest());
    let message = decode_manifest(&bytes[..bytes.len() - 1]).unwrap_err();
    assert!(message.starts_with("the index is corrupt: "), "{message}");
    assert!(message.ends_with("rebuild it with `feedline index --rebuild`"), "{message}");
    let message = decode_manifest(&[]).unwrap_err();
    assert!(message.starts_with("the index has version 0, but this release reads version 1"), "{message}");
}

#[test]
fn block_lists_of_different_length_are_rejected() {
    let index = || -> wire::ShardIndex { samples::manifest().shards.swap_remove(0).to_indexed().into_wire() };
    let error = |index: wire::ShardIndex| error_of::<feedline_data::manifest::IndexedShard, _>(index);
    let message = error(wire::ShardIndex { block_offsets: Vec::new(), ..index() });
    assert_eq!(message, "the per-block lists of a shard do not all have 3 entries");
    let message = error(wire::ShardIndex { row_bytes: vec![1, 2], ..index() });
    assert_eq!(message, "a shard is missing row sizes from block 0 on");
    let message = error(wire::ShardIndex { row_bytes: vec![1; 9], ..index() });
    assert_eq!(message, "a shard has more row sizes than rows");
}

#[test]
fn errors_name_missing_and_unknown_values() {
    let message = wire::JobSpec { pipeline: None, ..samples::spec().into_wire() };
    assert_eq!(
        error_of::<JobSpec, _>(message),
        "the message has no field `job.pipeline`, or this release does not support its value; use the same release on both sides"
    );
    let mut view: wire::ClusterView = samples::cluster_view().into_wire();
    view.caches[0].tier = 0;
    assert!(error_of::<ClusterView, _>(view.clone()).contains("`cache.tier`"));
    view.jobs[0].state = None;
    assert!(error_of::<ClusterView, _>(view).contains("`job.state`"));
}

#[test]
fn a_pickled_function_is_sent_as_bytes_next_to_the_json() {
    let message: wire::Pipeline = samples::pipeline().into_wire();
    let codes: Vec<_> = message.codes.iter().map(|code| (code.operator, code.code.to_vec())).collect();
    assert_eq!(codes, [(5, vec![0x80])]);
    assert!(!String::from_utf8_lossy(&message.json).contains("gA=="));
    check::<Pipeline, wire::Pipeline>(samples::pipeline());
}

#[test]
fn text_that_is_not_base64_stays_unchanged() {
    for text in ["", "g", "gB==", "not base64"] {
        let mut pipeline = samples::pipeline();
        let OperatorKind::Map(MapFunction(function)) = &mut pipeline.operators[5].kind else {
            panic!("the sample has a map")
        };
        function.code = Some(text.to_owned());
        check::<Pipeline, wire::Pipeline>(pipeline);
    }
}

#[test]
fn a_pipeline_of_another_version_or_a_corrupted_pipeline_is_rejected_in_one_sentence() {
    let read = |message: wire::Pipeline| error_of::<Pipeline, _>(message);
    let message = || -> wire::Pipeline { samples::pipeline().into_wire() };
    assert_eq!(
        read(wire::Pipeline { version: 7, ..message() }),
        "the pipeline has version 7, but this release reads version 1; use the same release on both sides"
    );
    let unknown =
        br#"{"name": "a", "source": {"url": "x", "format": "text"}, "operators": [{"sharpen": {"by": 1}}]}"#;
    let error = read(wire::Pipeline { json: unknown[..].into(), ..message() });
    assert!(error.starts_with("cannot read the pipeline: unknown variant `sharpen`"), "{error}");
    assert!(error.ends_with("; use the same release on both sides"), "{error}");
    for operator in [0, u32::MAX] {
        let codes = vec![wire::FunctionCode { operator, code: vec![1].into() }];
        let error = read(wire::Pipeline { codes, ..message() });
        let number = u64::from(operator) + 1;
        assert_eq!(
            error,
            format!("the pipeline contains code for operator {number}, which does not call a function")
        );
    }
}

proptest! {
    #[test]
    fn pipelines_survive_a_round_trip(
        seed in any::<u64>(),
        window in any::<u64>(),
        order in proptest::sample::subsequence((0..8_usize).collect::<Vec<_>>(), 0..8),
        parallelism in any::<Option<u32>>(),
        p in 0.0..1.0_f64,
        urls in proptest::collection::vec(".*", 0..3),
    ) {
        let all = samples::pipeline();
        let mut operators: Vec<_> = order.into_iter().map(|index| all.operators[index].clone()).collect();
        for operator in &mut operators {
            operator.parallelism = parallelism;
            if let OperatorKind::RandomHorizontalFlip(RandomHorizontalFlip { p: share, .. }) = &mut operator.kind {
                *share = p;
            }
        }
        let mut pipeline = Pipeline { seed, operators, ..all };
        pipeline.shuffle.window = window;
        pipeline.source.url = urls;
        check::<Pipeline, wire::Pipeline>(pipeline);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        // The calls must return, even if the bytes are invalid.
        let _ = decode_manifest(&bytes);
        let _ = wire::WorkerReport::decode(bytes.as_slice()).map(|message| WorkerReport::from_wire(message, "test"));
        let _ = wire::Pipeline::decode(bytes.as_slice()).map(|message| Pipeline::from_wire(message, "test"));
        let _ = wire::ConsumerPlan::decode(bytes.as_slice()).map(|message| ConsumerPlan::from_wire(message, "test"));
        let _ = wire::FetchFrame::decode(bytes.as_slice()).map(Frame::try_from);
    }
}

#[test]
fn a_schema_that_declares_more_bytes_than_it_has_is_rejected_without_an_allocation() {
    let frame = |bytes: &[u8]| {
        let frame = wire::fetch_frame::Frame::Schema(bytes.to_vec().into());
        Frame::try_from(wire::FetchFrame { frame: Some(frame) }).expect_err("no schema").to_string()
    };
    for bytes in [&[3, 29, 24, 24, 1][..], &[255, 255, 255, 255, 3, 29, 24, 24, 1], &[255; 8]] {
        assert!(frame(bytes).contains("is truncated: "), "{bytes:?}: {}", frame(bytes));
    }
    assert!(frame(&[]).contains("the row schema is corrupt"));
}
