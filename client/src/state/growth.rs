//! Unbounded jobs: the recorded segments, which determine the epochs of batches and are part of positions.

use std::sync::Arc;

use feedline_data::growth::{GrowthUpdate, KnownGrowth};

use super::ConsumerState;
use crate::batch::BatchInfo;

/// Number of delivered segments that a consumer retains, because other ranks may be a few batches behind.
const RETAINED_SEGMENTS: usize = 32;

impl ConsumerState {
    /// How much of the growth the consumer knows.
    pub(super) fn known_growth(&self) -> KnownGrowth {
        self.growth.as_ref().map(|growth| growth.known()).unwrap_or_default()
    }

    /// Applies the growth in a plan, and forgets segments that were delivered long ago.
    pub(super) fn apply_growth(&mut self, update: GrowthUpdate) {
        let Some(layout) = &self.layout else { return };
        let streams = self.streams.as_slice().iter();
        let round = if self.identity.is_relaxed {
            let open =
                streams.flat_map(|stream| stream.assembler.undelivered_splits()).map(|(split, _)| split);
            open.chain(self.planned.keys().copied()).map(|split| split.ordinal).min()
        } else {
            streams.map(|stream| stream.position(layout).row / layout.split_rows).min()
        };
        let growth = Arc::make_mut(self.growth.get_or_insert_default());
        growth.apply(update);
        // A relaxed consumer without a split needs only the totals.
        let round = round.unwrap_or(growth.rounds);
        let delivered = growth.segments.partition_point(|segment| segment.end_round() <= round);
        if let Some(last) = delivered.checked_sub(RETAINED_SEGMENTS + 1) {
            growth.trim(growth.segments[last].end_round());
        }
    }

    /// Sets the epoch of a batch, which is that of its first row, and the segments after it.
    pub(super) fn set_batch_growth(&self, info: &mut BatchInfo) {
        let Some(growth) = &self.growth else { return };
        let first = info.kept.first().map(|(split, _)| split).or(info.inputs.first().map(|(split, _)| split));
        let segment = first.and_then(|split| growth.segment(split.ordinal));
        info.epoch = segment.map_or(growth.epoch, |segment| segment.epoch);
        info.growth = Some(Arc::clone(growth));
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::growth::{Growth, GrowthPartition};
    use feedline_data::ids::{JobId, SessionId};
    use feedline_data::layout::{Layout, SplitRef};
    use feedline_data::segments::{OffsetRange, Segment};
    use tokio::time::Instant;

    use super::*;
    use crate::settings::ClientSettings;
    use crate::state::ConsumerIdentity;
    use crate::state::stream_state::StreamState;
    use crate::state::stream_table::ConsumerStreams;
    use crate::testing::layout;

    /// The growth of the leader after segments of one round with 10 rows each. Each epoch has three segments.
    fn leader(rounds: u64) -> Growth {
        let partition = GrowthPartition {
            url: "kafka://a:1/t/0".to_owned(),
            topic_id: "id".to_owned(),
            schema_id: None,
            next: 0,
            row_bytes: 9,
        };
        let mut growth = Growth::default();
        growth.extend(&[partition], None, 0);
        for round in 0..rounds {
            let ranges =
                vec![OffsetRange { partition: 0, from: 10 * round, to: 10 * round + 10, row_bytes: 9 }];
            let (first_row_id, epoch) = (10 * round, round as u32 / 3);
            growth.extend(
                &[],
                Some(&Segment { first_round: round, rounds: 1, first_row_id, epoch, ranges }),
                0,
            );
        }
        growth
    }

    fn consumer() -> ConsumerState {
        let identity =
            ConsumerIdentity { job: JobId(1), consumer: 0, session: SessionId(1), is_relaxed: false };
        let mut state = ConsumerState::new(identity, ClientSettings::default(), Instant::now());
        let layout = Layout { unbounded: true, ..layout(1 << 20, 4, 1, 4) };
        state.streams = ConsumerStreams::new(vec![StreamState::new(&layout, 0, Default::default())], &layout);
        state.layout = Some(layout);
        state
    }

    #[tokio::test]
    async fn a_batch_has_the_epoch_of_its_first_row_and_the_segments_after_it() {
        let mut state = consumer();
        assert_eq!(state.known_growth(), KnownGrowth::default());
        state.apply_growth(leader(5).update_after(KnownGrowth::default()));
        assert_eq!(state.known_growth(), KnownGrowth { rounds: 5, partitions: 1 });
        let split = |ordinal| SplitRef { epoch: 0, ordinal, stream: 0 };
        let mut info = BatchInfo {
            inputs: vec![(split(2), 10..16), (split(3), 0..4)],
            kept: vec![(split(3), vec![0, 1, 2, 3])],
            ..BatchInfo::default()
        };
        state.set_batch_growth(&mut info);
        assert_eq!(info.epoch, 1, "the padding before the first row belongs to the previous epoch");
        assert_eq!(info.growth.as_deref(), Some(&leader(5)));
        let mut whole = BatchInfo { inputs: vec![(split(2), 0..4)], ..BatchInfo::default() };
        state.set_batch_growth(&mut whole);
        assert_eq!(whole.epoch, 0);
    }

    #[tokio::test]
    async fn segments_that_were_delivered_long_ago_are_forgotten() {
        let mut state = consumer();
        for rounds in 1..100 {
            let update = leader(rounds).update_after(state.known_growth());
            state.apply_growth(update);
        }
        let growth = state.growth.clone().expect("an unbounded job");
        assert_eq!((growth.segments.len(), growth.rounds), (99, 99), "nothing is delivered");
        let layout = state.layout.clone().expect("it is set");
        let at = feedline_data::layout::StreamPosition { epoch: 0, row: 90 * layout.split_rows };
        state.streams = ConsumerStreams::new(vec![StreamState::new(&layout, 0, at)], &layout);
        state.apply_growth(leader(100).update_after(state.known_growth()));
        let growth = state.growth.clone().expect("an unbounded job");
        assert_eq!(
            growth.segments.first().map(|segment| segment.first_round),
            Some(90 - RETAINED_SEGMENTS as u64)
        );
    }
}
