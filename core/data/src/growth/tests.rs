//! Tests of the growth of unbounded jobs.

use proptest::prelude::*;

use super::*;
use crate::pipeline::Remainder;

fn shard(partition: u32, id: &str, from: u64, to: u64) -> ShardRef {
    let topic_id = id.to_owned();
    let version = KafkaRange { topic_id, from, to, leader_epoch: None, schema_id: None }.to_string();
    let url = format!("kafka://a:1/t/{partition}");
    ShardRef { url, size_bytes: 0, version, ..ShardRef::default() }
}

fn growth(partitions: u32) -> Growth {
    let listed: Vec<ShardRef> = (0..partitions).map(|partition| shard(partition, "id", 0, 0)).collect();
    let mut growth = Growth::default();
    let found = growth.compare(&listed).unwrap();
    growth.extend(&found.partitions, None, 0);
    growth
}

const PLAN: SegmentPlan = SegmentPlan { streams: 2, split_rows: 8, max_rows: 100, starts_epoch: false };

proptest! {
    #[test]
    fn segments_record_every_offset_once_and_no_partition_waits_for_another(
        steps in prop::collection::vec(prop::collection::vec(0u64..300, 3), 1..12), max_rows in 1u64..200,
    ) {
        let mut growth = growth(3);
        let mut ends = vec![0_u64; 3];
        let mut recorded = vec![0_u64; 3];
        let mut rounds = 0;
        for step in steps {
            ends.iter_mut().zip(step).for_each(|(end, more)| *end += more);
            let listed: Vec<(u32, u64)> = (0..).zip(ends.iter().copied()).collect();
            let Some(segment) = growth.next_segment(&listed, &SegmentPlan { max_rows, ..PLAN }) else {
                prop_assert_eq!(&recorded, &ends);
                continue;
            };
            let pending: Vec<u64> = ends.iter().zip(&recorded).map(|(end, at)| end - at).collect();
            prop_assert_eq!(segment.rows(), pending.iter().sum::<u64>().min(max_rows));
            prop_assert_eq!(segment.first_round, rounds);
            prop_assert!(segment.rows() <= segment.rounds * 16 && segment.rows() > (segment.rounds - 1) * 16);
            let most = segment.ranges.iter().map(OffsetRange::rows).max().unwrap_or(0);
            for range in &segment.ranges {
                let at = &mut recorded[range.partition as usize];
                prop_assert_eq!(*at, range.from);
                *at = range.to;
                let is_all = range.rows() == pending[range.partition as usize];
                prop_assert!(is_all || range.rows() + 1 >= most, "{:?} of {:?}", segment, pending);
            }
            rounds = segment.end_round();
            growth.extend(&[], Some(&segment), 0);
            prop_assert_eq!(growth.rounds, rounds);
            prop_assert_eq!(growth.rows, recorded.iter().sum::<u64>());
        }
    }

    #[test]
    fn a_consumer_follows_from_updates_that_may_be_lost_repeated_or_late(
        steps in prop::collection::vec((1u64..50, 0u32..2, 0u64..6, any::<bool>()), 1..30),
    ) {
        let mut leader = growth(1);
        let mut consumer = Growth::default();
        let mut late: Option<GrowthUpdate> = None;
        let mut ends = vec![0_u64];
        for (more, partitions, delivered, arrives) in steps {
            let known = ends.len();
            for number in known..known + partitions as usize {
                let partition = partition_of(&shard(number as u32, "id", 0, 0), KafkaRange {
                    topic_id: "id".to_owned(), from: 0, to: 0, leader_epoch: None, schema_id: None,
                }, 7);
                leader.extend(&[partition], None, 0);
            }
            ends.resize(known + partitions as usize, 0);
            ends.iter_mut().for_each(|end| *end += more);
            let listed: Vec<(u32, u64)> = (0..).zip(ends.iter().copied()).collect();
            let segment = leader.next_segment(&listed, &PLAN);
            leader.extend(&[], segment.as_ref(), more);
            leader.trim(leader.rounds.saturating_sub(delivered));
            let update = leader.update_after(consumer.known());
            if arrives {
                consumer.apply(update.clone());
                prop_assert_eq!(&consumer.partitions, &leader.partitions);
                prop_assert_eq!((consumer.rounds, consumer.rows, consumer.epoch), (leader.rounds, leader.rows, leader.epoch));
                prop_assert!(consumer.segments.ends_with(&leader.segments));
                consumer.trim(leader.rounds.saturating_sub(delivered + 2));
            }
            if let Some(late) = late.replace(update) {
                let before = consumer.clone();
                consumer.apply(late);
                prop_assert!(consumer.rounds >= before.rounds && consumer.partitions.len() >= before.partitions.len());
            }
        }
    }

    #[test]
    fn the_totals_of_segments_equal_a_recount_after_any_changes(
        steps in prop::collection::vec((0u8..8, 1u64..60, 0u64..12), 1..25),
    ) {
        let (mut leader, mut consumer) = (growth(2), Growth::default());
        // A block of the first partition has four rows.
        leader.partitions[0].row_bytes = 1 << 18;
        let mut end = 0;
        for (change, rows, delivered) in steps {
            let round = leader.rounds.saturating_sub(delivered);
            match change {
                0..3 => {
                    end += rows;
                    let segment = leader.next_segment(&[(0, end), (1, end / 2)], &PLAN);
                    leader.extend(&[], segment.as_ref(), 0);
                }
                3 => leader.trim(round),
                4 => leader = serde_json::from_str(&serde_json::to_string(&leader).unwrap()).unwrap(),
                5 => leader = leader.before(&layout(), [StreamPosition { epoch: 0, row: 8 * round }]),
                6 => consumer.trim(round),
                _ => consumer.apply(leader.update_after(consumer.known())),
            }
            for growth in [&leader, &consumer] {
                for round in 0..=growth.rounds {
                    let is_undelivered = |segment: &&Segment| segment.end_round() > round;
                    let undelivered: Vec<Segment> = growth.segments.iter().filter(is_undelivered).cloned().collect();
                    let rows: u64 = undelivered.iter().map(Segment::rows).sum();
                    let blocks: u64 = undelivered.iter().map(Segment::blocks).sum();
                    prop_assert_eq!(growth.segments.totals_after(round), SegmentTotals { rows, blocks });
                    prop_assert_eq!(growth.segments.ending_after(round), &undelivered[..]);
                }
            }
        }
    }
}

#[test]
fn a_listing_brings_new_partitions_and_rejects_other_topics() {
    let growth = growth(2);
    let found = growth.compare(&[shard(0, "id", 0, 5), shard(1, "id", 0, 0), shard(2, "id", 3, 9)]).unwrap();
    assert_eq!(found.ends, [(0, 5), (2, 9)]);
    assert_eq!(found.partitions.len(), 1);
    assert_eq!(found.partitions[0].next, 3, "a new partition starts at its first record");
    let again = growth.compare(&[shard(0, "other", 0, 5), shard(1, "id", 0, 0)]).unwrap_err();
    assert!(again.contains("created again") && again.contains("t/0"), "{again}");
    let deleted = growth.compare(&[shard(0, "id", 0, 5)]).unwrap_err();
    assert!(deleted.contains("t/1, which no longer exists"), "{deleted}");
    let many: Vec<ShardRef> =
        (0..MAX_PARTITIONS as u32 + 1).map(|partition| shard(partition, "id", 0, 0)).collect();
    assert!(growth.compare(&many).unwrap_err().contains("10001 partitions"));
}

#[test]
fn a_new_partition_has_the_schema_of_its_topic() {
    let of_topic = |topic: &str, partition: u32, schema_id: u32| {
        let schema_id = Some(schema_id);
        let range = KafkaRange { topic_id: topic.to_owned(), from: 0, to: 0, leader_epoch: None, schema_id };
        let url = format!("kafka://a:1/{topic}/{partition}");
        ShardRef { url, size_bytes: 0, version: range.to_string(), ..ShardRef::default() }
    };
    let mut growth = Growth::default();
    let found = growth.compare(&[of_topic("t", 0, 3), of_topic("u", 0, 5)]).unwrap();
    growth.extend(&found.partitions, None, 0);
    // Newer schemas were registered while the job runs.
    let listed = [
        of_topic("t", 0, 9),
        of_topic("t", 1, 9),
        of_topic("u", 0, 8),
        of_topic("u", 1, 8),
        of_topic("v", 0, 7),
    ];
    let found = growth.compare(&listed).unwrap();
    let schemas: Vec<(&str, Option<u32>)> =
        found.partitions.iter().map(|partition| (partition.url.as_str(), partition.schema_id)).collect();
    assert_eq!(
        schemas,
        [("kafka://a:1/t/1", Some(3)), ("kafka://a:1/u/1", Some(5)), ("kafka://a:1/v/0", Some(7))],
        "a topic without a known partition keeps its own schema"
    );
}

#[test]
fn the_end_of_a_partition_may_be_behind_after_a_change_of_its_leader() {
    let mut growth = growth(1);
    let segment = growth.next_segment(&[(0, 50)], &PLAN).unwrap();
    growth.extend(&[], Some(&segment), 0);
    let found = growth.compare(&[shard(0, "id", 0, 40)]).unwrap();
    assert_eq!(found, ListedGrowth { behind: Some((0, 40)), ..ListedGrowth::default() });
    assert_eq!(growth.next_segment(&[(0, 40)], &PLAN), None);
}

#[test]
fn a_partition_without_a_known_end_does_not_stop_the_others() {
    let mut growth = growth(2);
    growth.partitions[0].next = 5;
    let unknown = |partition| ShardRef { version: String::new(), ..shard(partition, "id", 0, 0) };
    let found = growth.compare(&[unknown(0), shard(1, "id", 0, 9), unknown(2)]).unwrap();
    assert_eq!((found.ends, found.partitions), (vec![(1, 9)], Vec::new()));
}

#[test]
fn an_epoch_starts_with_a_segment() {
    let mut growth = growth(1);
    for (end, starts_epoch, epoch, first) in
        [(10, false, 0, 0), (20, true, 1, 10), (25, false, 1, 10), (30, true, 2, 25)]
    {
        let segment = growth.next_segment(&[(0, end)], &SegmentPlan { starts_epoch, ..PLAN }).unwrap();
        growth.extend(&[], Some(&segment), end);
        assert_eq!(
            (segment.epoch, growth.epoch, growth.epoch_first_row, growth.epoch_ms),
            (epoch, epoch, first, end)
        );
    }
    assert_eq!(growth.segment(0).map(|segment| segment.epoch), Some(0));
    assert_eq!(growth.segment(growth.rounds), None);
    growth.trim(1);
    assert_eq!((growth.segment(0), growth.segments.len()), (None, 3));
}

fn layout() -> Layout {
    Layout {
        dataset_rows: 1 << 40,
        passes: 1,
        epochs: 1,
        streams: 2,
        batch_rows: 4,
        remainder: Remainder::Carry,
        changes_rows: true,
        split_rows: 8,
        group_rows: 4,
        coordinated: false,
        mix_changes: Vec::new(),
        runs: Default::default(),
        unbounded: true,
        indivisible: false,
    }
}

#[test]
fn a_position_contains_the_segments_after_it_and_a_manifest() {
    let layout = layout();
    let mut growth = growth(1);
    for end in [10, 20, 60] {
        let segment = growth.next_segment(&[(0, end)], &PLAN).unwrap();
        growth.extend(&[], Some(&segment), 0);
    }
    let at = |row| StreamPosition { epoch: 0, row };
    let saved = growth.before(&layout, [at(9), at(30)]);
    assert_eq!(saved.segments[..], growth.segments[1..]);
    let position = GrowthPosition { growth: saved, columns: Schema::default(), split_rows: 8 };
    position.check(&layout, &[at(9), at(40)]).unwrap();
    assert!(
        position.check(&layout, &[at(7), at(30)]).is_err_and(|error| error.contains("virtual consumer 0"))
    );
    assert!(
        position.check(&layout, &[at(9), at(48)]).is_err_and(|error| error.contains("virtual consumer 1"))
    );
    let with_segments = |segments: Vec<Segment>| {
        let rounds = segments.last().map_or(growth.rounds, Segment::end_round);
        let growth = Growth { segments: segments.into(), rounds, ..position.growth.clone() };
        GrowthPosition { growth, ..position.clone() }
    };
    let mut segments = position.growth.segments.to_vec();
    let last = segments.last_mut().unwrap();
    (last.rounds, last.ranges[0].to, last.ranges[0].row_bytes) = (1 << 35, 1 << 39, 1 << 30);
    let huge = with_segments(segments);
    assert!(huge.check(&layout, &[at(9), at(40)]).is_err_and(|error| error.contains("do not match")));
    let mut segments = position.growth.segments.to_vec();
    for segment in &mut segments {
        // Each segment has as many blocks as a position allows it.
        segment.rounds = 1 << 18;
        segment.ranges = vec![OffsetRange { partition: 0, from: 0, to: 1 << 22, row_bytes: 1 << 30 }];
    }
    let [first, second] = &mut segments[..] else { panic!("two segments") };
    second.first_round = first.end_round();
    let third = Segment { first_round: second.end_round(), ..second.clone() };
    let long = with_segments(segments.clone());
    assert_eq!(long.check(&layout, &[at(9), at(40)]), Ok(()), "a leader records this number of blocks");
    segments.push(third);
    let message = with_segments(segments).check(&layout, &[at(9), at(40)]).unwrap_err();
    assert!(message.contains("12582912 blocks") && message.contains("a new job"), "{message}");
    let mut torn = position.clone();
    torn.growth.segments = position.growth.segments[1..].to_vec().into();
    assert!(torn.check(&layout, &[at(30), at(30)]).is_ok(), "both streams are behind the removed segment");
    torn.growth.segments = RecordedSegments::default();
    assert!(torn.check(&layout, &[at(30), at(30)]).is_err());
    let manifest = position.manifest();
    assert_eq!(manifest.shards.len(), 1);
    assert_eq!(manifest.shards[0].object.kafka_range().map(|range| range.topic_id), Some("id".to_owned()));
    assert_eq!(manifest.summary().bytes, u64::from(position.growth.partitions[0].row_bytes));
    let text = serde_json::to_string(&position).unwrap();
    assert_eq!(serde_json::from_str::<GrowthPosition>(&text).unwrap(), position);
}

#[test]
fn the_rows_after_a_position_are_those_of_the_segments_after_it() {
    let mut growth = growth(1);
    for end in [20, 30] {
        let segment = growth.next_segment(&[(0, end)], &PLAN).unwrap();
        growth.extend(&[], Some(&segment), 0);
    }
    // Two rounds of 16 slots with 20 rows, and one round with 10 rows.
    let layout = layout();
    let at = |row| StreamPosition { epoch: 0, row };
    assert_eq!(growth.rows_after(&layout, &[at(0), at(0)]), 30);
    assert_eq!(growth.rows_after(&layout, &[at(16), at(0)]), 20);
    assert_eq!(growth.rows_after(&layout, &[at(16), at(16)]), 10);
    assert_eq!(growth.rows_after(&layout, &[at(24), at(30)]), 0);
    // The last round has 5 rows for each stream, and 3 slots of padding after them.
    assert_eq!(growth.rows_after(&layout, &[at(19), at(16)]), 7);
    assert_eq!(growth.rows_after(&layout, &[at(21), at(22)]), 0);
}

#[test]
fn the_rows_after_a_position_are_estimated_from_the_segments_of_the_streams() {
    let (layout, mut growth) = (layout(), growth(1));
    let mut end = 0;
    for segment in 0..50 {
        end += 1 + segment * 7 % 40;
        let segment = growth.next_segment(&[(0, end)], &PLAN).unwrap();
        growth.extend(&[], Some(&segment), 0);
    }
    growth.trim(10);
    // Every segment by itself, with the rows distributed evenly among the slots of its whole splits.
    let estimate = |streams: &[StreamPosition]| -> u64 {
        let of_segment = |segment: &Segment| {
            let slots = 8 * segment.first_round..8 * segment.end_round();
            let whole = |at: &StreamPosition| (slots.end - at.row.clamp(slots.start, slots.end)) / 8;
            let splits: u64 = streams.iter().map(whole).sum();
            segment.rows() * splits / (2 * segment.rounds)
        };
        growth.segments.iter().map(of_segment).sum()
    };
    let at = |round| StreamPosition { epoch: 0, row: 8 * round };
    for first in 0..growth.rounds + 2 {
        for second in [0, first / 2, first, growth.rounds] {
            let streams = [at(first), at(second)];
            let (rows, expected) = (growth.rows_after(&layout, &streams), estimate(&streams));
            // Both round down: once for each segment, and once for each stream and the later segments.
            assert!(rows + 3 >= expected && rows <= expected + 50, "{first} {second}: {rows}, {expected}");
        }
    }
}
