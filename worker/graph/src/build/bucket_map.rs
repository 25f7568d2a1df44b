//! The division of targets into buckets of about the same number of edges. A bucket is a range of targets, so sorted buckets in
//! order are sorted edges.

use std::ops::Range;

/// Maximum number of buckets. Each bucket has an open file, and the usual limit of open files is 1,024.
pub(super) const MAX_BUCKETS: usize = 512;
/// Number of bits of a cell number.
const CELL_BITS: u32 = 16;

/// Assigns each target to a bucket. Targets are divided into equal cells, and a bucket consists of consecutive cells.
#[derive(Debug)]
pub(super) struct BucketMap {
    cell_shift: u32,
    bucket_of_cell: Vec<u16>,
    /// The first target of each bucket, and the number of targets.
    starts: Vec<u64>,
}

impl BucketMap {
    /// Divides targets below `count` into at most `buckets` buckets. `sample` contains the targets of a part of the edges. It need
    /// not be representative: half of the weight of a cell is the same for all cells.
    pub(super) fn new(count: u64, buckets: usize, sample: &[u32]) -> Self {
        let cell_shift = (u64::BITS - count.saturating_sub(1).leading_zeros()).saturating_sub(CELL_BITS);
        let cells = count.div_ceil(1 << cell_shift).max(1) as usize;
        let buckets = buckets.clamp(1, MAX_BUCKETS.min(cells));
        let mut weights = vec![(sample.len() as u64 / cells as u64).max(1); cells];
        for &target in sample {
            if let Some(weight) = weights.get_mut((target >> cell_shift) as usize) {
                *weight += 1;
            }
        }
        let total: u64 = weights.iter().sum();
        let mut map = Self { cell_shift, bucket_of_cell: Vec::with_capacity(cells), starts: vec![0] };
        let (mut bucket, mut before) = (0_u16, 0_u64);
        for (cell, weight) in weights.into_iter().enumerate() {
            // The bucket in which the first edge of the cell is if all buckets have the same weight.
            let wanted = (u128::from(before) * buckets as u128 / u128::from(total)) as u16;
            if wanted > bucket {
                bucket += 1;
                map.starts.push((cell as u64) << cell_shift);
            }
            map.bucket_of_cell.push(bucket);
            before += weight;
        }
        map.starts.push(count);
        map
    }

    /// The number of buckets.
    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The bucket of a target below the number of targets.
    pub(super) fn bucket(&self, target: u32) -> usize {
        usize::from(self.bucket_of_cell[(target >> self.cell_shift) as usize])
    }

    /// The targets of a bucket.
    pub(super) fn targets(&self, bucket: usize) -> Range<u64> {
        self.starts[bucket]..self.starts[bucket + 1]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_target_is_in_the_range_of_its_bucket(
            count in prop_oneof![1_u64..100, 1_u64..1 << 32], buckets in 1_usize..600,
            sample in prop::collection::vec(any::<u32>(), 0..50), targets in prop::collection::vec(any::<u32>(), 20),
        ) {
            let map = BucketMap::new(count, buckets, &sample);
            prop_assert!((1..=buckets.min(MAX_BUCKETS)).contains(&map.len()));
            prop_assert_eq!(map.targets(0).start, 0);
            prop_assert_eq!(map.targets(map.len() - 1).end, count);
            for target in targets {
                let target = (u64::from(target) % count) as u32;
                prop_assert!(map.targets(map.bucket(target)).contains(&u64::from(target)));
            }
        }
    }

    #[test]
    fn buckets_have_about_the_same_number_of_edges() {
        // Half of the edges have the first thousandth of the targets.
        let sample: Vec<u32> =
            (0..100_000).map(|index| if index % 2 == 0 { index % 1_000 } else { index * 10 }).collect();
        let map = BucketMap::new(1_000_000, 64, &sample);
        let mut edges = vec![0; map.len()];
        sample.iter().for_each(|&target| edges[map.bucket(target)] += 1);
        assert!(edges.iter().all(|&edges| edges < 5_000), "{edges:?}");
        assert!(map.len() > 40);
    }

    #[test]
    fn an_empty_graph_has_one_bucket() {
        let map = BucketMap::new(0, 8, &[]);
        assert_eq!((map.len(), map.targets(0)), (1, 0..0));
    }
}
