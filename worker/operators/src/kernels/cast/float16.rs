//! Rounding to float16. Arrow and `half` round float64 to float32 first, which changes some results. A float32 that is rounded to odd
//! has the same nearest float16 as the float64 (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, ListArray};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type};
use arrow::error::ArrowError;
use half::f16;

/// Returns the nearest float16.
pub(crate) fn rounded_f16(value: f64) -> f16 {
    f16::from_f32(to_odd(value))
}

/// Rounds the float64 elements of an array to odd float32, at all nesting depths of lists.
pub(super) fn rounded_to_odd(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let renewed =
        |item: &Field, values: &ArrayRef| Arc::new(item.clone().with_data_type(values.data_type().clone()));
    Ok(match array.data_type() {
        DataType::Float64 => Arc::new(array.as_primitive::<Float64Type>().unary::<_, Float32Type>(to_odd)),
        DataType::List(item) => {
            let lists = array.as_list::<i32>();
            let values = rounded_to_odd(lists.values())?;
            let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
            Arc::new(ListArray::try_new(renewed(item, &values), offsets, values, nulls)?)
        }
        DataType::FixedSizeList(item, length) => {
            let lists = array.as_fixed_size_list();
            let values = rounded_to_odd(lists.values())?;
            let nulls = lists.nulls().cloned();
            Arc::new(FixedSizeListArray::try_new(renewed(item, &values), *length, values, nulls)?)
        }
        _ => array.clone(),
    })
}

/// Of the two float32 values around a value that float32 does not represent, returns the one with an odd last bit.
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let bits = nearest.to_bits();
    if bits & 1 == 1 || !nearest.is_finite() || f64::from(nearest) == value {
        return nearest;
    }
    let is_too_large = f64::from(nearest).abs() > value.abs();
    f32::from_bits(if is_too_large { bits - 1 } else { bits + 1 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The nearest float16, and the even one of two, by comparing all.
    fn nearest(value: f64) -> f64 {
        let distance = |bits: u16| (f16::from_bits(bits).to_f64() - value.abs()).abs();
        let largest = f16::MAX.to_bits();
        let best =
            (0..=largest).min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))));
        f16::from_bits(best.unwrap()).to_f64().copysign(value)
    }

    #[test]
    fn values_beside_the_middle_of_two_are_rounded_once() {
        let half = 2.0_f64.powi(-11);
        for (value, rounded) in [
            (1.0 + half + 2.0_f64.powi(-30), 1.0 + 2.0 * half),
            (1.0 + half, 1.0),
            (-(1.0 + half + 2.0_f64.powi(-40)), -(1.0 + 2.0 * half)),
            (2.0_f64.powi(-25) + 2.0_f64.powi(-60), 2.0_f64.powi(-24)),
            (65519.9999999, 65504.0),
            (65520.0, f64::INFINITY),
            (1e300, f64::INFINITY),
        ] {
            assert_eq!(rounded_f16(value).to_f64(), rounded, "{value}");
        }
        assert!(rounded_f16(f64::NAN).is_nan());
        assert!(rounded_f16(-0.0).is_sign_negative());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_nearest_float16_is_found(near in 0_u16..0x7c00, offset in -1.0_f64..1.0, exponent in -50_i32..0) {
            let step = 2.0_f64.powi(-11) * f16::from_bits(near).to_f64().max(2.0_f64.powi(-14));
            let value = f16::from_bits(near).to_f64() + step + offset * step * 2.0_f64.powi(exponent);
            prop_assume!(value < 65504.0);
            prop_assert_eq!(rounded_f16(value).to_f64(), nearest(value));
            prop_assert_eq!(rounded_f16(-value).to_f64(), nearest(-value));
        }
    }
}
