//! Arithmetic on arrays. Overflow and integer division by zero result in null.

use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::compute::kernels::numeric;
use arrow::datatypes::{Float64Type, Int64Type, UInt64Type};

use super::expression::{Arithmetic, ExprType};
use super::values::ExprValues;

/// Evaluates `left operator right` for numbers of one type.
pub(super) fn arithmetic(
    operator: Arithmetic,
    kind: ExprType,
    left: &ExprValues,
    right: &ExprValues,
) -> ExprValues {
    let is_scalar = left.is_scalar && right.is_scalar;
    if matches!(kind, ExprType::Int | ExprType::UInt)
        && let Some(array) = evaluate_vectorized(operator, left, right)
    {
        return ExprValues { array, is_scalar };
    }
    let array: ArrayRef = match kind {
        ExprType::Int => {
            let op = match operator {
                Arithmetic::Add => i64::checked_add,
                Arithmetic::Subtract => i64::checked_sub,
                Arithmetic::Multiply => i64::checked_mul,
                Arithmetic::Divide => i64::checked_div,
                // MIN % -1 overflows in Rust, but its remainder is 0.
                Arithmetic::Remainder => |a: i64, b: i64| (b != 0).then(|| a.wrapping_rem(b)),
            };
            Arc::new(by_row::<Int64Type>(left, right, op))
        }
        ExprType::UInt => {
            let op = match operator {
                Arithmetic::Add => u64::checked_add,
                Arithmetic::Subtract => u64::checked_sub,
                Arithmetic::Multiply => u64::checked_mul,
                Arithmetic::Divide => u64::checked_div,
                Arithmetic::Remainder => u64::checked_rem,
            };
            Arc::new(by_row::<UInt64Type>(left, right, op))
        }
        _ => {
            let op: fn(f64, f64) -> f64 = match operator {
                Arithmetic::Add => |a, b| a + b,
                Arithmetic::Subtract => |a, b| a - b,
                Arithmetic::Multiply => |a, b| a * b,
                Arithmetic::Divide => |a, b| a / b,
                Arithmetic::Remainder => |a, b| a % b,
            };
            Arc::new(by_row::<Float64Type>(left, right, |a, b| Some(op(a, b))))
        }
    };
    ExprValues { array, is_scalar }
}

/// Evaluates an operation with Arrow's vectorized kernel. `None` if a row overflows, because the kernel then fails for all rows.
fn evaluate_vectorized(operator: Arithmetic, left: &ExprValues, right: &ExprValues) -> Option<ArrayRef> {
    let kernel = match operator {
        Arithmetic::Add => numeric::add,
        Arithmetic::Subtract => numeric::sub,
        Arithmetic::Multiply => numeric::mul,
        Arithmetic::Divide | Arithmetic::Remainder => return None,
    };
    kernel(left.datum().as_ref(), right.datum().as_ref()).ok()
}

fn by_row<T: ArrowPrimitiveType>(
    left: &ExprValues,
    right: &ExprValues,
    op: impl Fn(T::Native, T::Native) -> Option<T::Native>,
) -> PrimitiveArray<T> {
    let (a, b) = (left.array.as_primitive::<T>(), right.array.as_primitive::<T>());
    let both = |a: Option<T::Native>, b: Option<T::Native>| op(a?, b?);
    match (left.is_scalar, right.is_scalar) {
        (true, true) | (false, false) => a.iter().zip(b).map(|(a, b)| both(a, b)).collect(),
        (true, false) => {
            let a = a.iter().next().flatten();
            b.iter().map(|b| both(a, b)).collect()
        }
        (false, true) => {
            let b = b.iter().next().flatten();
            a.iter().map(|a| both(a, b)).collect()
        }
    }
}

/// Negates the values.
pub(super) fn negate(kind: ExprType, values: &ArrayRef) -> ArrayRef {
    match kind {
        ExprType::Float => {
            Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(|value| -value))
        }
        _ => Arc::new(values.as_primitive::<Int64Type>().unary_opt::<_, Int64Type>(i64::checked_neg)),
    }
}

/// Returns the absolute values.
pub(super) fn absolute(kind: ExprType, values: &ArrayRef) -> ArrayRef {
    match kind {
        ExprType::Float => Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(f64::abs)),
        ExprType::Int => {
            Arc::new(values.as_primitive::<Int64Type>().unary_opt::<_, Int64Type>(i64::checked_abs))
        }
        _ => values.clone(),
    }
}
