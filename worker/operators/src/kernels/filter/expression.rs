//! The typed expression of a filter.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, new_null_array};
use arrow::datatypes::DataType;

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
    Compare(Comparison, Box<FilterExpr>, Box<FilterExpr>),
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

    /// Whether the expression is an integer literal that is not negative.
    pub(super) fn is_non_negative_literal(&self) -> bool {
        use arrow::array::AsArray;
        match (&self.node, self.kind) {
            (FilterExpr::Literal(array), ExprType::Int) => {
                array.as_primitive::<arrow::datatypes::Int64Type>().value(0) >= 0
            }
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

/// Converts two expressions to a common type. Of two number types, the common type is the wider one. If an expression is NULL, the
/// common type is the type of the other expression. `None` if there is no common type.
pub(super) fn unify(a: TypedExpr, b: TypedExpr) -> Option<(TypedExpr, TypedExpr)> {
    let kind = match (a.kind, b.kind) {
        (same, other) if same == other => same,
        (ExprType::Null, other) | (other, ExprType::Null) => other,
        (ExprType::Int, ExprType::UInt) if a.is_non_negative_literal() => ExprType::UInt,
        (ExprType::UInt, ExprType::Int) if b.is_non_negative_literal() => ExprType::UInt,
        (left, right) if left.is_number() && right.is_number() => ExprType::Float,
        _ => return None,
    };
    Some((a.into_kind(kind), b.into_kind(kind)))
}
