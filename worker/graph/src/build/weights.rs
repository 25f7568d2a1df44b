//! Weights of the edges of a target as sums of integers, which samplers use.

/// Appends the running sums of the weights of one target, as integers with 32 bits. Weights must be finite and not negative.
///
/// Integers whose sum has at most 32 bits are exact. Other weights are scaled, so that their sum is almost 2^32, and rounded down.
/// A positive weight stays positive. All operations have the same results on all processors.
pub(super) fn append_sums(weights: &[f64], sums: &mut Vec<u32>) {
    let total: f64 = weights.iter().sum();
    let is_exact = total <= f64::from(u32::MAX) && weights.iter().all(|weight| weight.fract() == 0.0);
    let scale = if is_exact { Scale { largest: 1.0, factor: 1.0 } } else { Scale::of(weights) };
    let mut sum = 0_u32;
    for &weight in weights {
        let integer = (weight / scale.largest * scale.factor) as u32;
        sum = sum.saturating_add(integer.max(u32::from(weight > 0.0)));
        sums.push(sum);
    }
}

/// The conversion of weights to integers. It has two steps, so that neither very small nor very large weights overflow.
struct Scale {
    /// The largest weight, by which weights are divided.
    largest: f64,
    /// The factor of weights that are at most 1.
    factor: f64,
}

impl Scale {
    fn of(weights: &[f64]) -> Self {
        let largest = weights.iter().copied().fold(0.0, f64::max);
        let total: f64 = weights.iter().map(|weight| weight / largest).sum();
        // Each weight that is rounded up to 1 adds at most 1. The margin covers the rounding of the sum.
        let available = f64::from(u32::MAX) * (1.0 - 1e-6) - weights.len() as f64;
        Self { largest, factor: available.max(0.0) / total }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums(weights: &[f64]) -> Vec<u32> {
        let mut sums = Vec::new();
        append_sums(weights, &mut sums);
        sums
    }

    #[test]
    fn integers_are_exact() {
        assert_eq!(sums(&[3.0, 0.0, 4.0]), [3, 3, 7]);
        assert_eq!(sums(&[0.0, 0.0]), [0, 0]);
        assert_eq!(sums(&[f64::from(u32::MAX)]), [u32::MAX]);
        assert_eq!(sums(&[]), [0_u32; 0]);
    }

    #[test]
    fn extreme_weights_keep_their_ratios() {
        for weights in [[f64::MAX, f64::MAX], [f64::MIN_POSITIVE, f64::MIN_POSITIVE], [0.1, 0.1]] {
            let sums = sums(&weights);
            assert!(sums[0] > 1 << 30 && sums[1] == 2 * sums[0], "{sums:?}");
        }
        assert_eq!(sums(&[1e-300, 1.0])[0], 1, "a positive weight stays positive");
    }

    proptest! {
        #[test]
        fn probabilities_are_those_of_the_weights(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 0.01..100.0], 1..200),
        ) {
            let sums = sums(&weights);
            let total: f64 = weights.iter().sum();
            prop_assume!(total > 0.0);
            let (mut before, last) = (0, f64::from(*sums.last().unwrap()));
            for (weight, sum) in weights.iter().zip(sums) {
                let error = f64::from(sum - before) / last - weight / total;
                prop_assert!(error.abs() < 1e-6);
                prop_assert_eq!(*weight == 0.0, sum == before);
                before = sum;
            }
        }
    }
}
