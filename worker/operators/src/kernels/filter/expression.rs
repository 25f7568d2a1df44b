//! The typed expression of a filter.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, new_null_array};
use arrow::datatypes::{DataType, Int64Type};

/// A float64 represents all integers from the negative of this number up to this number.
const MAX_EXACT_FLOAT_INTEGER: u64 = 1 << 53;

/// The type of an expression. Numbers have 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExprType {
    Bool,
    Int,
    UInt,
    Float,
    Text,
    Bytes,
    List,
    /// A tensor with several axes, which supports only `IS NULL`.
    Tensor,
    /// The type of the literal NULL, which can be converted to any other type.
    Null,
}

impl ExprType {
    pub(super) fn is_number(self) -> bool {
        matches!(self, Self::Int | Self::UInt | Self::Float)
    }

    /// The Arrow type that values are converted to. Lists and tensors are not converted.
    pub(super) fn arrow(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int => DataType::Int64,
            Self::UInt => DataType::UInt64,
            Self::Float => DataType::Float64,
            Self::Text => DataType::Utf8View,
            Self::Bytes => DataType::BinaryView,
            Self::List | Self::Tensor | Self::Null => DataType::Null,
        }
    }
}

impl std::fmt::Display for ExprType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bool => "a boolean",
            Self::Int | Self::UInt | Self::Float => "a number",
            Self::Text => "text",
            Self::Bytes => "bytes",
            Self::List => "a list",
            Self::Tensor => "a tensor",
            Self::Null => "null",
        })
    }
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Eq,
    NotEq,
    Lt,
    LtEq,
    Gt,
    GtEq,
    /// `IS DISTINCT FROM`, which treats null as an ordinary value.
    Distinct,
    /// `IS NOT DISTINCT FROM`.
    NotDistinct,
}

/// An arithmetic operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// A function with one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScalarFunction {
    /// Number of characters in text, bytes in a binary value, or elements in a list.
    Length,
    /// Number of bytes in text or a binary value.
    OctetLength,
    Lower,
    Upper,
    Abs,
}

/// A node of an expression. The analysis has checked the types of the operands.
#[derive(Debug, Clone)]
pub(super) enum FilterExpr {
    /// A column, converted to a type.
    Column {
        name: String,
        kind: ExprType,
    },
    /// A literal, as an array of length 1.
    Literal(ArrayRef),
    Not(Box<FilterExpr>),
    And(Box<FilterExpr>, Box<FilterExpr>),
    Or(Box<FilterExpr>, Box<FilterExpr>),
    /// `IS [NOT] TRUE` and `IS [NOT] FALSE`.
    IsBool {
        value: Box<FilterExpr>,
        expected: bool,
        negated: bool,
    },
    IsNull {
        value: Box<FilterExpr>,
        negated: bool,
    },
    /// Compares values of one type, or numbers of different types by their exact values.
    Compare(Comparison, Box<FilterExpr>, Box<FilterExpr>),
    /// Each item is compared with the value as in `Compare`.
    In {
        value: Box<FilterExpr>,
        items: Vec<FilterExpr>,
    },
    Like {
        value: Box<FilterExpr>,
        pattern: Box<FilterExpr>,
        ignore_case: bool,
        negated: bool,
    },
    Arithmetic(Arithmetic, ExprType, Box<FilterExpr>, Box<FilterExpr>),
    Negate(ExprType, Box<FilterExpr>),
    /// Converts a number to another number type.
    Convert(ExprType, Box<FilterExpr>),
    Call(ScalarFunction, ExprType, Box<FilterExpr>),
    /// The first value that is not null.
    Coalesce(Vec<FilterExpr>),
    /// The result of the first true condition, or `otherwise`.
    Case {
        branches: Vec<(FilterExpr, FilterExpr)>,
        otherwise: Box<FilterExpr>,
    },
}

/// An expression with its type.
#[derive(Debug, Clone)]
pub(super) struct TypedExpr {
    pub(super) node: FilterExpr,
    pub(super) kind: ExprType,
}

impl TypedExpr {
    pub(super) fn new(kind: ExprType, node: FilterExpr) -> Self {
        Self { node, kind }
    }

    /// A literal. The array has length 1.
    pub(super) fn literal(kind: ExprType, value: impl Array + 'static) -> Self {
        Self::new(kind, FilterExpr::Literal(Arc::new(value)))
    }

    pub(super) fn null() -> Self {
        Self::new(ExprType::Null, FilterExpr::Literal(new_null_array(&DataType::Null, 1)))
    }

    /// Whether the expression is a literal of type `Int` that another number type represents exactly.
    fn is_literal_representable_as(&self, kind: ExprType) -> bool {
        let (FilterExpr::Literal(array), ExprType::Int) = (&self.node, self.kind) else { return false };
        let value = array.as_primitive::<Int64Type>().value(0);
        match kind {
            ExprType::UInt => value >= 0,
            ExprType::Float => value.unsigned_abs() <= MAX_EXACT_FLOAT_INTEGER,
            _ => false,
        }
    }

    /// Converts the expression to another type. NULL becomes a null of the type.
    pub(super) fn into_kind(self, kind: ExprType) -> Self {
        if self.kind == kind {
            return self;
        }
        if self.kind == ExprType::Null {
            return Self::new(kind, FilterExpr::Literal(new_null_array(&kind.arrow(), 1)));
        }
        Self::new(kind, FilterExpr::Convert(kind, Box::new(self.node)))
    }
}

/// Converts the operands of a comparison to a common type, as [`unify`] does, except that numbers keep their types where a conversion
/// might round them. The comparison of numbers is therefore exact, also between int64, uint64 and float64. A literal with a fraction,
/// or of more than 64 bits, has the value of the nearest float64. `None` if there is no common type.
pub(super) fn unify_operands(a: TypedExpr, b: TypedExpr) -> Option<(TypedExpr, TypedExpr)> {
    let are_different_numbers = a.kind != b.kind && a.kind.is_number() && b.kind.is_number();
    let is_exact = a.is_literal_representable_as(b.kind) || b.is_literal_representable_as(a.kind);
    if are_different_numbers && !is_exact {
        return Some((a, b));
    }
    unify(a, b)
}

/// Converts two expressions to a common type. Int64 and uint64, and integers and floats, have the common type float64, which rounds
/// large integers. If an integer is a literal, the common type of int64 and uint64 may be uint64. If an expression is NULL, the common
/// type is the type of the other expression. `None` if there is no common type.
pub(super) fn unify(a: TypedExpr, b: TypedExpr) -> Option<(TypedExpr, TypedExpr)> {
    let kind = match (a.kind, b.kind) {
        (same, other) if same == other => same,
        (ExprType::Null, other) | (other, ExprType::Null) => other,
        (ExprType::Int, ExprType::UInt) if a.is_literal_representable_as(ExprType::UInt) => ExprType::UInt,
        (ExprType::UInt, ExprType::Int) if b.is_literal_representable_as(ExprType::UInt) => ExprType::UInt,
        (left, right) if left.is_number() && right.is_number() => ExprType::Float,
        _ => return None,
    };
    Some((a.into_kind(kind), b.into_kind(kind)))
}
