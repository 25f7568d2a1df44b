//! Evaluates a typed expression over the rows of a chunk with Arrow's vectorized kernels.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Datum, new_null_array};
use arrow::compute::kernels::{boolean, cmp, zip};
use arrow::compute::{ilike, like, nilike, nlike};
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int64Type, UInt64Type};
use arrow::error::ArrowError;

use super::expression::{Comparison, ExprType, FilterExpr};
use super::values::ExprValues;
use super::{functions, numeric};
use crate::arrow_types::cast_to;
use crate::{Chunk, Column, OperatorError};

type BooleanKernel = fn(&BooleanArray, &BooleanArray) -> Result<BooleanArray, ArrowError>;

/// Evaluates an expression for the rows of a chunk.
///
/// # Errors
/// Returns an error if the chunk does not have the columns of the expression, or an Arrow kernel fails.
pub(super) fn evaluate(node: &FilterExpr, chunk: &Chunk) -> Result<ExprValues, OperatorError> {
    let value = |node: &FilterExpr| evaluate(node, chunk);
    Ok(match node {
        FilterExpr::Column { name, kind } => read_column(chunk, name, *kind)?,
        FilterExpr::Literal(array) => ExprValues { array: array.clone(), is_scalar: true },
        FilterExpr::Not(inner) => value(inner)?.map_bool(boolean::not)?,
        FilterExpr::And(left, right) => {
            apply_boolean(value(left)?, value(right)?, chunk.rows(), boolean::and_kleene)?
        }
        FilterExpr::Or(left, right) => {
            apply_boolean(value(left)?, value(right)?, chunk.rows(), boolean::or_kleene)?
        }
        FilterExpr::IsBool { value: inner, expected, negated } => value(inner)?.map_bool(|booleans| {
            Ok(booleans.iter().map(|boolean| Some((boolean == Some(*expected)) != *negated)).collect())
        })?,
        FilterExpr::IsNull { value: inner, negated } => {
            let inner = value(inner)?;
            let kernel = if *negated { boolean::is_not_null } else { boolean::is_null };
            inner.with_array(Arc::new(kernel(inner.array.as_ref())?))
        }
        FilterExpr::Compare(comparison, left, right) => compare(*comparison, &value(left)?, &value(right)?)?,
        FilterExpr::In { value, items } => evaluate_in(value, items, chunk)?,
        FilterExpr::Like { value: text, pattern, ignore_case, negated } => {
            let kernel = match (ignore_case, negated) {
                (false, false) => like,
                (false, true) => nlike,
                (true, false) => ilike,
                (true, true) => nilike,
            };
            apply_comparison(&value(text)?, &value(pattern)?, kernel)?
        }
        FilterExpr::Arithmetic(operator, kind, left, right) => {
            numeric::arithmetic(*operator, *kind, &value(left)?, &value(right)?)
        }
        FilterExpr::Negate(kind, inner) => {
            let inner = value(inner)?;
            inner.with_array(numeric::negate(*kind, &inner.array))
        }
        FilterExpr::Convert(kind, inner) => {
            let inner = value(inner)?;
            inner.with_array(arrow::compute::cast(&inner.array, &kind.arrow())?)
        }
        FilterExpr::Call(function, kind, inner) => {
            let inner = value(inner)?;
            inner.with_array(functions::call(*function, *kind, &inner.array))
        }
        FilterExpr::Coalesce(values) => evaluate_coalesce(values, chunk)?,
        FilterExpr::Case { branches, otherwise } => evaluate_case(branches, otherwise, chunk)?,
    })
}

fn read_column(chunk: &Chunk, name: &str, kind: ExprType) -> Result<ExprValues, OperatorError> {
    match (&chunk.columns[chunk.column_index(name)?].1, kind) {
        (Column::Arrow(array), ExprType::List | ExprType::Tensor) => Ok(ExprValues::per_row(array.clone())),
        (Column::Arrow(array), kind) => Ok(ExprValues::per_row(cast_to(array, &kind.arrow())?)),
        (Column::Tensor(tensor), ExprType::List | ExprType::Tensor) => {
            // Replace the elements with nulls, because expressions use only the length and the validity of a list.
            let elements = tensor.shape.first().copied().unwrap_or(0) as usize;
            let nulls = new_null_array(&DataType::Null, elements * tensor.rows);
            let field = Arc::new(arrow::datatypes::Field::new_list_field(DataType::Null, true));
            let offsets = arrow::buffer::OffsetBuffer::from_repeated_length(elements, tensor.rows);
            Ok(ExprValues::per_row(Arc::new(arrow::array::ListArray::new(field, offsets, nulls, None))))
        }
        (other, _) => Err(OperatorError::new(format!(
            "column `{name}` contains {}, which a filter cannot read",
            other.describe()
        ))),
    }
}

/// Evaluates `IN`. The result is true if an item equals the value. Otherwise it is null if the value or an item is null.
fn evaluate_in(value: &FilterExpr, items: &[FilterExpr], chunk: &Chunk) -> Result<ExprValues, OperatorError> {
    let value = evaluate(value, chunk)?;
    let mut found = ExprValues { array: Arc::new(BooleanArray::from(vec![false])), is_scalar: true };
    for item in items {
        let is_equal = compare(Comparison::Eq, &value, &evaluate(item, chunk)?)?;
        found = apply_boolean(found, is_equal, chunk.rows(), boolean::or_kleene)?;
    }
    Ok(found)
}

fn evaluate_coalesce(values: &[FilterExpr], chunk: &Chunk) -> Result<ExprValues, OperatorError> {
    let mut result: Option<ArrayRef> = None;
    for value in values {
        let next = evaluate(value, chunk)?.into_rows(chunk.rows())?;
        result = Some(match &result {
            None => next,
            Some(before) => zip::zip(&boolean::is_not_null(before.as_ref())?, before, &next)?,
        });
    }
    Ok(ExprValues::per_row(result.expect("the analysis rejects coalesce() without arguments")))
}

fn evaluate_case(
    branches: &[(FilterExpr, FilterExpr)],
    otherwise: &FilterExpr,
    chunk: &Chunk,
) -> Result<ExprValues, OperatorError> {
    let rows = chunk.rows();
    let mut result = evaluate(otherwise, chunk)?.into_rows(rows)?;
    // Apply the branches from last to first, so that the first true condition determines the result.
    for (condition, value) in branches.iter().rev() {
        let condition = evaluate(condition, chunk)?.into_rows(rows)?;
        let is_true: BooleanArray =
            condition.as_boolean().iter().map(|boolean| Some(boolean == Some(true))).collect();
        result = zip::zip(&is_true, &evaluate(value, chunk)?.into_rows(rows)?, &result)?;
    }
    Ok(ExprValues::per_row(result))
}

/// Applies a boolean kernel to two values. Either value may be a scalar.
fn apply_boolean(
    left: ExprValues,
    right: ExprValues,
    rows: usize,
    kernel: BooleanKernel,
) -> Result<ExprValues, ArrowError> {
    if left.is_scalar && right.is_scalar {
        let result = kernel(left.array.as_boolean(), right.array.as_boolean())?;
        return Ok(left.with_array(Arc::new(result)));
    }
    let (left, right) = (left.into_rows(rows)?, right.into_rows(rows)?);
    Ok(ExprValues::per_row(Arc::new(kernel(left.as_boolean(), right.as_boolean())?)))
}

/// Applies a comparison kernel to two values. Either value may be a scalar.
fn apply_comparison(
    left: &ExprValues,
    right: &ExprValues,
    kernel: fn(&dyn Datum, &dyn Datum) -> Result<BooleanArray, ArrowError>,
) -> Result<ExprValues, ArrowError> {
    let result = kernel(left.datum().as_ref(), right.datum().as_ref())?;
    Ok(ExprValues { array: Arc::new(result), is_scalar: left.is_scalar && right.is_scalar })
}

/// Compares values of one type, or numbers of different types by their exact values.
fn compare(comparison: Comparison, left: &ExprValues, right: &ExprValues) -> Result<ExprValues, ArrowError> {
    let kernel = match comparison {
        Comparison::Eq => cmp::eq,
        Comparison::NotEq => cmp::neq,
        Comparison::Lt => cmp::lt,
        Comparison::LtEq => cmp::lt_eq,
        Comparison::Gt => cmp::gt,
        Comparison::GtEq => cmp::gt_eq,
        Comparison::Distinct => cmp::distinct,
        Comparison::NotDistinct => cmp::not_distinct,
    };
    if left.array.data_type() == right.array.data_type() {
        apply_comparison(&normalize_floats(left), &normalize_floats(right), kernel)
    } else {
        apply_comparison(&with_order_keys(left), &with_order_keys(right), kernel)
    }
}

/// Replaces numbers with 128-bit keys. The key of an integer and the key of any number have the same order as these numbers. Floats
/// between two adjacent integers have the same key, so keys do not determine the order of floats.
fn with_order_keys(values: &ExprValues) -> ExprValues {
    let array = &values.array;
    let keys = match array.data_type() {
        DataType::Int64 => {
            array.as_primitive::<Int64Type>().unary::<_, Decimal128Type>(|value| 2 * i128::from(value))
        }
        DataType::UInt64 => {
            array.as_primitive::<UInt64Type>().unary::<_, Decimal128Type>(|value| 2 * i128::from(value))
        }
        DataType::Float64 => array.as_primitive::<Float64Type>().unary::<_, Decimal128Type>(float_order_key),
        _ => return values.clone(),
    };
    values.with_array(Arc::new(keys))
}

/// Returns twice the value of a whole number, as for integers, and the odd number between two such keys for a number with a fraction.
/// As in [`normalize_floats`], negative zero equals zero, and NaN is greater than all integers.
fn float_order_key(value: f64) -> i128 {
    if value.is_nan() {
        return i128::MAX;
    }
    let floor = value.floor();
    // Numbers beyond 128 bits become the first or last 128-bit integer, which is beyond all integers of 64 bits.
    (floor as i128).saturating_mul(2).saturating_add(i128::from(floor != value))
}

/// Replaces negative zero with zero, and all NaNs with the same NaN. Arrow compares floats by IEEE total order, but SQL
/// compares their values. As in PostgreSQL, NaN equals NaN and is greater than all other numbers.
fn normalize_floats(values: &ExprValues) -> ExprValues {
    match values.array.as_primitive_opt::<Float64Type>() {
        Some(floats) => {
            let normalize = |value: f64| if value.is_nan() { f64::NAN.abs() } else { value + 0.0 };
            values.with_array(Arc::new(floats.unary::<_, Float64Type>(normalize)))
        }
        None => values.clone(),
    }
}
