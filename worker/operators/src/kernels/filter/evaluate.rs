//! Evaluates a typed expression over the rows of a chunk, column by column, with Arrow's kernels.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Datum, Scalar, new_null_array};
use arrow::compute::kernels::{boolean, cmp, zip};
use arrow::compute::{ilike, like, nilike, nlike};
use arrow::datatypes::{DataType, Float64Type, UInt32Type};
use arrow::error::ArrowError;

use super::expression::{Comparison, ExprType, FilterExpr};
use super::{functions, numeric};
use crate::arrow_types::as_type;
use crate::{Chunk, Column, OperatorError};

/// The values of a node: one per row, or one for all.
#[derive(Debug, Clone)]
pub(super) struct ExprValues {
    pub(super) array: ArrayRef,
    pub(super) is_scalar: bool,
}

impl ExprValues {
    pub(super) fn rows(array: ArrayRef) -> Self {
        Self { array, is_scalar: false }
    }

    pub(super) fn datum(&self) -> Box<dyn Datum> {
        if self.is_scalar { Box::new(Scalar::new(self.array.clone())) } else { Box::new(self.array.clone()) }
    }

    /// One value per row.
    fn spread(self, rows: usize) -> Result<ArrayRef, ArrowError> {
        if !self.is_scalar {
            return Ok(self.array);
        }
        let first = arrow::array::PrimitiveArray::<UInt32Type>::from(vec![0; rows]);
        arrow::compute::take(&self.array, &first, None)
    }
}

/// The values of `node` for the rows of `chunk`.
pub(super) fn evaluate(node: &FilterExpr, chunk: &Chunk) -> Result<ExprValues, OperatorError> {
    let failed = |error: ArrowError| OperatorError::new(format!("the filter cannot be evaluated: {error}"));
    Evaluation { chunk }.values(node)?.map_err(failed)
}

struct Evaluation<'a> {
    chunk: &'a Chunk,
}

/// Outside: the chunk is not what the expression was built for. Inside: what a kernel says.
type Evaluated = Result<Result<ExprValues, ArrowError>, OperatorError>;

impl Evaluation<'_> {
    fn get(&self, node: &FilterExpr) -> Result<ExprValues, OperatorError> {
        evaluate(node, self.chunk)
    }

    fn values(&self, node: &FilterExpr) -> Evaluated {
        Ok(match node {
            FilterExpr::Column { name, kind } => self.column(name, *kind).map(Ok)?,
            FilterExpr::Literal(array) => Ok(ExprValues { array: array.clone(), is_scalar: true }),
            FilterExpr::Not(value) => self.truth(value)?.map_truth(boolean::not),
            FilterExpr::And(left, right) => self.connect(left, right, boolean::and_kleene)?,
            FilterExpr::Or(left, right) => self.connect(left, right, boolean::or_kleene)?,
            FilterExpr::IsTruth { value, wanted, negated } => {
                let found = |truth: &BooleanArray| {
                    let is = |value: Option<bool>| Some((value == Some(*wanted)) != *negated);
                    Ok(truth.iter().map(is).collect())
                };
                self.truth(value)?.map_truth(found)
            }
            FilterExpr::IsNull { value, negated } => {
                let value = self.get(value)?;
                let kernel = if *negated { boolean::is_not_null } else { boolean::is_null };
                kernel(value.array.as_ref()).map(|found| value.like(Arc::new(found)))
            }
            FilterExpr::Compare(comparison, left, right) => {
                compare(*comparison, &self.get(left)?, &self.get(right)?)
            }
            FilterExpr::In { value, items } => self.is_in(value, items)?,
            FilterExpr::Like { value, pattern, ignore_case, negated } => {
                let kernel = match (ignore_case, negated) {
                    (false, false) => like,
                    (false, true) => nlike,
                    (true, false) => ilike,
                    (true, true) => nilike,
                };
                combine(&self.get(value)?, &self.get(pattern)?, kernel)
            }
            FilterExpr::Arithmetic(operator, kind, left, right) => {
                numeric::arithmetic(*operator, *kind, &self.get(left)?, &self.get(right)?)
            }
            FilterExpr::Negate(kind, value) => {
                let value = self.get(value)?;
                Ok(value.like(numeric::negate(*kind, &value.array)))
            }
            FilterExpr::Convert(kind, value) => {
                let value = self.get(value)?;
                arrow::compute::cast(&value.array, &kind.arrow()).map(|array| value.like(array))
            }
            FilterExpr::Call(function, kind, value) => {
                let value = self.get(value)?;
                Ok(value.like(functions::call(*function, *kind, &value.array)))
            }
            FilterExpr::Coalesce(values) => self.coalesce(values)?,
            FilterExpr::Case { branches, otherwise } => self.case(branches, otherwise)?,
        })
    }

    fn column(&self, name: &str, kind: ExprType) -> Result<ExprValues, OperatorError> {
        let column = &self.chunk.columns[self.chunk.place_of(name)?].1;
        match (column, kind) {
            (Column::Arrow(array), ExprType::List) => Ok(ExprValues::rows(array.clone())),
            (Column::Arrow(array), kind) => Ok(ExprValues::rows(as_type(array, &kind.arrow())?)),
            (Column::Tensor(tensor), ExprType::List) => {
                // Only its length and its presence can be asked for: lists of as many nulls have both.
                let elements = tensor.shape.first().copied().unwrap_or(0) as usize;
                let nulls = new_null_array(&DataType::Null, elements * tensor.rows);
                let field = Arc::new(arrow::datatypes::Field::new_list_field(DataType::Null, true));
                let offsets = arrow::buffer::OffsetBuffer::from_repeated_length(elements, tensor.rows);
                Ok(ExprValues::rows(Arc::new(arrow::array::ListArray::new(field, offsets, nulls, None))))
            }
            (other, _) => Err(OperatorError::new(format!(
                "column `{name}` holds {}, which a filter cannot read",
                other.kind()
            ))),
        }
    }

    fn truth(&self, node: &FilterExpr) -> Result<ExprValues, OperatorError> {
        self.get(node)
    }

    fn connect(
        &self,
        left: &FilterExpr,
        right: &FilterExpr,
        kernel: fn(&BooleanArray, &BooleanArray) -> Result<BooleanArray, ArrowError>,
    ) -> Evaluated {
        let (left, right) = (self.truth(left)?, self.truth(right)?);
        Ok(connected(left, right, self.chunk.rows(), kernel))
    }

    /// SQL's IN: true where an item is equal, else null where one is null.
    fn is_in(&self, value: &FilterExpr, items: &[FilterExpr]) -> Evaluated {
        let value = self.get(value)?;
        let mut found: Option<ExprValues> = None;
        for item in items {
            let item = self.get(item)?;
            let equal = match compare(Comparison::Eq, &value, &item) {
                Ok(equal) => equal,
                Err(error) => return Ok(Err(error)),
            };
            found = Some(match found {
                None => equal,
                Some(before) => match connected(before, equal, self.chunk.rows(), boolean::or_kleene) {
                    Ok(either) => either,
                    Err(error) => return Ok(Err(error)),
                },
            });
        }
        let nothing = || ExprValues { array: Arc::new(BooleanArray::from(vec![false])), is_scalar: true };
        Ok(Ok(found.unwrap_or_else(nothing)))
    }

    fn coalesce(&self, nodes: &[FilterExpr]) -> Evaluated {
        let rows = self.chunk.rows();
        let mut result: Option<ArrayRef> = None;
        for node in nodes {
            let next = match self.get(node)?.spread(rows) {
                Ok(next) => next,
                Err(error) => return Ok(Err(error)),
            };
            let merged = match &result {
                None => Ok(next),
                Some(before) => {
                    boolean::is_not_null(before.as_ref()).and_then(|is| zip::zip(&is, before, &next))
                }
            };
            match merged {
                Ok(merged) => result = Some(merged),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(ExprValues::rows(result.expect("the analysis refuses coalesce() without arguments"))))
    }

    fn case(&self, branches: &[(FilterExpr, FilterExpr)], otherwise: &FilterExpr) -> Evaluated {
        let rows = self.chunk.rows();
        let mut result = match self.get(otherwise)?.spread(rows) {
            Ok(result) => result,
            Err(error) => return Ok(Err(error)),
        };
        // From the last branch to the first, so that the first condition that is true has the last word.
        for (condition, value) in branches.iter().rev() {
            let (condition, value) = (self.truth(condition)?, self.get(value)?);
            let chosen = condition.spread(rows).and_then(|condition| {
                let is_true: BooleanArray =
                    condition.as_boolean().iter().map(|truth| Some(truth == Some(true))).collect();
                zip::zip(&is_true, &value.spread(rows)?, &result)
            });
            match chosen {
                Ok(chosen) => result = chosen,
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(ExprValues::rows(result)))
    }
}

impl ExprValues {
    /// Other values for the same rows.
    fn like(&self, array: ArrayRef) -> Self {
        Self { array, is_scalar: self.is_scalar }
    }

    fn map_truth(
        self,
        kernel: impl Fn(&BooleanArray) -> Result<BooleanArray, ArrowError>,
    ) -> Result<Self, ArrowError> {
        kernel(self.array.as_boolean()).map(|found| self.like(Arc::new(found)))
    }
}

fn connected(
    left: ExprValues,
    right: ExprValues,
    rows: usize,
    kernel: fn(&BooleanArray, &BooleanArray) -> Result<BooleanArray, ArrowError>,
) -> Result<ExprValues, ArrowError> {
    if left.is_scalar && right.is_scalar {
        let found = kernel(left.array.as_boolean(), right.array.as_boolean())?;
        return Ok(left.like(Arc::new(found)));
    }
    let (left, right) = (left.spread(rows)?, right.spread(rows)?);
    Ok(ExprValues::rows(Arc::new(kernel(left.as_boolean(), right.as_boolean())?)))
}

/// Runs a kernel on two values, either of which may be one for all rows.
fn combine(
    left: &ExprValues,
    right: &ExprValues,
    kernel: fn(&dyn Datum, &dyn Datum) -> Result<BooleanArray, ArrowError>,
) -> Result<ExprValues, ArrowError> {
    let found = kernel(left.datum().as_ref(), right.datum().as_ref())?;
    Ok(ExprValues { array: Arc::new(found), is_scalar: left.is_scalar && right.is_scalar })
}

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
    combine(&one_zero(left), &one_zero(right), kernel)
}

/// Negative zero as zero, and NaN as one NaN: Arrow compares bit patterns in IEEE's total order, SQL compares numbers
/// (with NaN equal to itself and above all others, as PostgreSQL has it).
fn one_zero(values: &ExprValues) -> ExprValues {
    match values.array.as_primitive_opt::<Float64Type>() {
        Some(floats) => {
            let plain = |value: f64| if value.is_nan() { f64::NAN.abs() } else { value + 0.0 };
            values.like(Arc::new(floats.unary::<_, Float64Type>(plain)))
        }
        None => values.clone(),
    }
}
