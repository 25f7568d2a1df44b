//! A filter's expression after its names and types are settled.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryViewArray, BooleanArray, Float64Array, Int64Array, StringViewArray, UInt64Array,
    new_null_array,
};
use arrow::datatypes::DataType;

/// The types an expression can have. Numbers are 64 bits wide while they are computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExprType {
    Bool,
    Int,
    UInt,
    Float,
    Text,
    Bytes,
    List,
    /// The literal NULL, which fits everywhere.
    Null,
}

impl ExprType {
    pub(super) fn is_number(self) -> bool {
        matches!(self, Self::Int | Self::UInt | Self::Float)
    }

    /// Arrow's type for values of this kind; lists have none of their own.
    pub(super) fn arrow(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int => DataType::Int64,
            Self::UInt => DataType::UInt64,
            Self::Float => DataType::Float64,
            Self::Text => DataType::Utf8View,
            Self::Bytes => DataType::BinaryView,
            Self::List | Self::Null => DataType::Null,
        }
    }
}

impl std::fmt::Display for ExprType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bool => "a truth value",
            Self::Int | Self::UInt | Self::Float => "a number",
            Self::Text => "text",
            Self::Bytes => "bytes",
            Self::List => "a list",
            Self::Null => "null",
        })
    }
}

/// How two values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Eq,
    NotEq,
    Lt,
    LtEq,
    Gt,
    GtEq,
    /// `IS DISTINCT FROM`: null is a value like any other.
    Distinct,
    /// `IS NOT DISTINCT FROM`.
    NotDistinct,
}

/// What is done with two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// A function of one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScalarFunction {
    /// Characters of text, bytes of bytes, elements of a list.
    Length,
    /// Bytes of text or bytes.
    OctetLength,
    Lower,
    Upper,
    Abs,
}

/// One node; operands have the kinds the node needs.
#[derive(Debug, Clone)]
pub(super) enum FilterExpr {
    /// A column as values of a kind.
    Column {
        name: String,
        kind: ExprType,
    },
    /// One value for all rows: an array of length 1.
    Literal(ArrayRef),
    Not(Box<FilterExpr>),
    And(Box<FilterExpr>, Box<FilterExpr>),
    Or(Box<FilterExpr>, Box<FilterExpr>),
    /// `IS [NOT] TRUE` and `IS [NOT] FALSE`.
    IsTruth {
        value: Box<FilterExpr>,
        wanted: bool,
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
    /// A number as a number of another kind.
    Convert(ExprType, Box<FilterExpr>),
    Call(ScalarFunction, ExprType, Box<FilterExpr>),
    /// The first that is not null.
    Coalesce(Vec<FilterExpr>),
    /// The result of the first condition that is true, or the last.
    Case {
        branches: Vec<(FilterExpr, FilterExpr)>,
        otherwise: Box<FilterExpr>,
    },
}

/// A node and the kind of its values.
#[derive(Debug, Clone)]
pub(super) struct TypedExpr {
    pub(super) node: FilterExpr,
    pub(super) kind: ExprType,
}

impl TypedExpr {
    pub(super) fn new(kind: ExprType, node: FilterExpr) -> Self {
        Self { node, kind }
    }

    pub(super) fn int(value: i64) -> Self {
        Self::new(ExprType::Int, FilterExpr::Literal(Arc::new(Int64Array::from(vec![value]))))
    }

    pub(super) fn uint(value: u64) -> Self {
        Self::new(ExprType::UInt, FilterExpr::Literal(Arc::new(UInt64Array::from(vec![value]))))
    }

    pub(super) fn float(value: f64) -> Self {
        Self::new(ExprType::Float, FilterExpr::Literal(Arc::new(Float64Array::from(vec![value]))))
    }

    pub(super) fn truth(value: bool) -> Self {
        Self::new(ExprType::Bool, FilterExpr::Literal(Arc::new(BooleanArray::from(vec![value]))))
    }

    pub(super) fn text(value: &str) -> Self {
        Self::new(ExprType::Text, FilterExpr::Literal(Arc::new(StringViewArray::from(vec![value]))))
    }

    pub(super) fn bytes(value: &[u8]) -> Self {
        Self::new(ExprType::Bytes, FilterExpr::Literal(Arc::new(BinaryViewArray::from(vec![value]))))
    }

    pub(super) fn null() -> Self {
        Self::new(ExprType::Null, FilterExpr::Literal(new_null_array(&DataType::Null, 1)))
    }

    /// Whether this is a whole literal that an unsigned number can hold.
    pub(super) fn is_natural_literal(&self) -> bool {
        use arrow::array::AsArray;
        match (&self.node, self.kind) {
            (FilterExpr::Literal(array), ExprType::Int) => {
                array.as_primitive::<arrow::datatypes::Int64Type>().value(0) >= 0
            }
            _ => false,
        }
    }

    /// The same values as another kind: numbers are converted, NULL becomes that kind's null.
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
