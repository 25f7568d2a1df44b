//! Parses an SQL expression, resolves its columns, and checks its types.

use arrow::array::{BinaryViewArray, BooleanArray, Float64Array, Int64Array, StringViewArray, UInt64Array};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use sqlparser::ast::{BinaryOperator, Expr, UnaryOperator, Value};
use sqlparser::dialect::GenericDialect;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token;

use super::calls::{self, TypeExpressions};
use super::expression::{Arithmetic, Comparison, ExprType, FilterExpr, TypedExpr, unify, unify_operands};

/// Maximum recursion depth of the parser, which limits its use of the stack.
const MAX_PARSE_DEPTH: usize = 64;
/// Maximum depth of the parsed expression, because evaluation and drop are recursive. The depth of a chain of ANDs is its length.
const MAX_EXPRESSION_DEPTH: usize = 256;
/// Maximum length of an expression in bytes.
const MAX_EXPRESSION_BYTES: usize = 16 << 10;
/// Minimum similarity of a suggested column name, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.6;

/// Parses an expression and checks the types of its columns.
pub(super) fn analyze(predicate: &str, schema: &Schema) -> Result<TypedExpr, String> {
    if predicate.len() > MAX_EXPRESSION_BYTES {
        return Err(format!(
            "where: the expression exceeds the limit of {MAX_EXPRESSION_BYTES} bytes; use several filters"
        ));
    }
    let parsed =
        parse(predicate).map_err(|error| format!("where: invalid expression `{predicate}`: {error}"))?;
    Analysis { schema, depth: 0 }.typed(&parsed).map_err(|error| format!("where: {error}"))
}

pub(in crate::kernels) fn parse(predicate: &str) -> Result<Expr, String> {
    let message = |error: sqlparser::parser::ParserError| {
        let text = error.to_string();
        text.trim_start_matches("sql parser error: ").to_owned()
    };
    let mut parser = Parser::new(&GenericDialect {})
        .with_recursion_limit(MAX_PARSE_DEPTH)
        .try_with_sql(predicate)
        .map_err(message)?;
    let expression = parser.parse_expr().map_err(message)?;
    match parser.peek_token().token {
        Token::EOF => Ok(expression),
        other => Err(format!("unexpected `{other}` after the end of the expression")),
    }
}

/// The state of the recursive analysis of a parsed expression.
#[derive(Clone, Copy)]
pub(super) struct Analysis<'a> {
    schema: &'a Schema,
    depth: usize,
}

impl TypeExpressions for Analysis<'_> {
    fn typed(self, expression: &Expr) -> Result<TypedExpr, String> {
        if self.depth > MAX_EXPRESSION_DEPTH {
            return Err("the expression is nested too deeply; use IN (...) or several filters".to_owned());
        }
        let inner = Self { depth: self.depth + 1, ..self };
        match expression {
            Expr::Nested(expression) => inner.typed(expression),
            Expr::Identifier(name) => self.column(&name.value),
            Expr::CompoundIdentifier(parts) => {
                let parts: Vec<&str> = parts.iter().map(|part| part.value.as_str()).collect();
                self.column(&parts.join("."))
            }
            Expr::Value(value) => literal(&value.value),
            Expr::UnaryOp { op, expr } => inner.unary(*op, expr),
            Expr::BinaryOp { left, op, right } => inner.binary(left, op, right),
            Expr::IsDistinctFrom(left, right) => inner.comparison(Comparison::Distinct, left, right),
            Expr::IsNotDistinctFrom(left, right) => inner.comparison(Comparison::NotDistinct, left, right),
            Expr::IsNull(value) | Expr::IsUnknown(value) => inner.is_null(value, false),
            Expr::IsNotNull(value) | Expr::IsNotUnknown(value) => inner.is_null(value, true),
            Expr::IsTrue(value) => inner.is_bool(value, true, false),
            Expr::IsNotTrue(value) => inner.is_bool(value, true, true),
            Expr::IsFalse(value) => inner.is_bool(value, false, false),
            Expr::IsNotFalse(value) => inner.is_bool(value, false, true),
            Expr::InList { expr, list, negated } => inner.in_list(expr, list, *negated),
            Expr::Between { expr, negated, low, high } => {
                let above = inner.comparison(Comparison::GtEq, expr, low)?.node;
                let below = inner.comparison(Comparison::LtEq, expr, high)?.node;
                Ok(negated_if(*negated, FilterExpr::And(Box::new(above), Box::new(below))))
            }
            Expr::Like { negated, any: false, expr, pattern, escape_char: None } => {
                inner.like(expr, pattern, false, *negated)
            }
            Expr::ILike { negated, any: false, expr, pattern, escape_char: None } => {
                inner.like(expr, pattern, true, *negated)
            }
            Expr::Case { operand: None, conditions, else_result, .. } => {
                calls::case(inner, conditions, else_result.as_deref())
            }
            Expr::Function(function) => calls::call(inner, function),
            other => Err(format!("`{other}` is not supported in a filter")),
        }
    }
}

impl Analysis<'_> {
    fn column(self, name: &str) -> Result<TypedExpr, String> {
        let Some(column_type) = self.schema.get(name) else {
            return Err(format!("there is no column `{name}`{}", self.suggest_columns(name)));
        };
        let kind = match column_type {
            ColumnType::Scalar(scalar) => scalar_kind(*scalar),
            ColumnType::Utf8 => ExprType::Text,
            ColumnType::Binary => ExprType::Bytes,
            ColumnType::List(_) => ExprType::List,
            ColumnType::Tensor { shape, .. } if shape.len() == 1 => ExprType::List,
            ColumnType::Tensor { .. } => ExprType::Tensor,
            ColumnType::Image => {
                return Err(format!(
                    "column `{name}` has type {column_type}, which a filter cannot read; move the filter before the operator \
                     that creates the column"
                ));
            }
        };
        Ok(TypedExpr::new(kind, FilterExpr::Column { name: name.to_owned(), kind }))
    }

    /// Suggests the most similar column, or lists all columns.
    fn suggest_columns(self, name: &str) -> String {
        let lower = name.to_lowercase();
        let similarity = |known: &str| strsim::normalized_damerau_levenshtein(&lower, &known.to_lowercase());
        let nearest = self.schema.names().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        match nearest {
            Some(nearest) if similarity(nearest) >= MIN_SIMILARITY => format!("; did you mean `{nearest}`?"),
            _ => {
                let names: Vec<&str> = self.schema.names().collect();
                format!("; the columns are {}", names.join(", "))
            }
        }
    }

    fn unary(self, operator: UnaryOperator, operand: &Expr) -> Result<TypedExpr, String> {
        match operator {
            UnaryOperator::Not => {
                let value = self.boolean(operand, "NOT")?;
                Ok(TypedExpr::new(ExprType::Bool, FilterExpr::Not(Box::new(value))))
            }
            UnaryOperator::Plus => self.number(operand, "+"),
            UnaryOperator::Minus => {
                // Parse the sign with the literal, because the smallest integer has no positive counterpart.
                if let Expr::Value(value) = operand
                    && let Value::Number(digits, _) = &value.value
                {
                    return number_literal(&format!("-{digits}"));
                }
                let value = self.number(operand, "-")?;
                let kind = if value.kind == ExprType::UInt { ExprType::Int } else { value.kind };
                let node = FilterExpr::Negate(kind, Box::new(value.into_kind(kind).node));
                Ok(TypedExpr::new(kind, node))
            }
            other => Err(format!("the operator `{other}` is not supported in a filter")),
        }
    }

    fn binary(self, left: &Expr, operator: &BinaryOperator, right: &Expr) -> Result<TypedExpr, String> {
        let arithmetic = |operator| self.arithmetic(operator, left, right);
        let comparison = |operator| self.comparison(operator, left, right);
        match operator {
            BinaryOperator::And => {
                let (left, right) = (self.boolean(left, "AND")?, self.boolean(right, "AND")?);
                Ok(TypedExpr::new(ExprType::Bool, FilterExpr::And(Box::new(left), Box::new(right))))
            }
            BinaryOperator::Or => {
                let (left, right) = (self.boolean(left, "OR")?, self.boolean(right, "OR")?);
                Ok(TypedExpr::new(ExprType::Bool, FilterExpr::Or(Box::new(left), Box::new(right))))
            }
            BinaryOperator::Eq => comparison(Comparison::Eq),
            BinaryOperator::NotEq => comparison(Comparison::NotEq),
            BinaryOperator::Lt => comparison(Comparison::Lt),
            BinaryOperator::LtEq => comparison(Comparison::LtEq),
            BinaryOperator::Gt => comparison(Comparison::Gt),
            BinaryOperator::GtEq => comparison(Comparison::GtEq),
            BinaryOperator::Plus => arithmetic(Arithmetic::Add),
            BinaryOperator::Minus => arithmetic(Arithmetic::Subtract),
            BinaryOperator::Multiply => arithmetic(Arithmetic::Multiply),
            BinaryOperator::Divide => arithmetic(Arithmetic::Divide),
            BinaryOperator::Modulo => arithmetic(Arithmetic::Remainder),
            other => Err(format!("the operator `{other}` is not supported in a filter")),
        }
    }

    fn arithmetic(self, operator: Arithmetic, left: &Expr, right: &Expr) -> Result<TypedExpr, String> {
        let (a, b) = (self.number(left, "arithmetic")?, self.number(right, "arithmetic")?);
        let (a, b) = unify(a, b).expect("two numbers have a common type");
        let kind = a.kind;
        Ok(TypedExpr::new(kind, FilterExpr::Arithmetic(operator, kind, Box::new(a.node), Box::new(b.node))))
    }

    fn comparison(self, operator: Comparison, left: &Expr, right: &Expr) -> Result<TypedExpr, String> {
        let (a, b) = (self.typed(left)?, self.typed(right)?);
        let (a, b) = self.comparable(a, left, b, right)?;
        Ok(TypedExpr::new(ExprType::Bool, FilterExpr::Compare(operator, Box::new(a.node), Box::new(b.node))))
    }

    fn comparable(
        self,
        a: TypedExpr,
        left: &Expr,
        b: TypedExpr,
        right: &Expr,
    ) -> Result<(TypedExpr, TypedExpr), String> {
        for (kind, value) in [(a.kind, left), (b.kind, right)] {
            match kind {
                ExprType::List => {
                    return Err(format!(
                        "`{value}` is {kind}, which cannot be compared; use length({value})"
                    ));
                }
                ExprType::Tensor => {
                    return Err(format!(
                        "`{value}` is {kind}, which cannot be compared; use only `{value} IS NULL`"
                    ));
                }
                _ => {}
            }
        }
        let kinds = (a.kind, b.kind);
        unify_operands(a, b).ok_or_else(|| {
            format!("`{left}` is {}, but `{right}` is {}: they cannot be compared", kinds.0, kinds.1)
        })
    }

    fn in_list(self, value: &Expr, list: &[Expr], negated: bool) -> Result<TypedExpr, String> {
        let mut operand = self.typed(value)?;
        let mut items = Vec::with_capacity(list.len());
        for item in list {
            let typed = self.typed(item)?;
            // An item may determine the type of an operand that is NULL or a literal, but does not change its value.
            let (converted, typed) = self.comparable(operand, value, typed, item)?;
            operand = converted;
            items.push(typed);
        }
        // Numbers keep their types. Only items that are NULL may have no type yet.
        let kind = operand.kind;
        let node = |item: TypedExpr| match item.kind {
            ExprType::Null => item.into_kind(kind).node,
            _ => item.node,
        };
        let items = items.into_iter().map(node).collect();
        Ok(negated_if(negated, FilterExpr::In { value: Box::new(operand.node), items }))
    }

    fn like(
        self,
        value: &Expr,
        pattern: &Expr,
        ignore_case: bool,
        negated: bool,
    ) -> Result<TypedExpr, String> {
        let (value, pattern) = (self.text(value, "LIKE")?, self.text(pattern, "LIKE")?);
        let node =
            FilterExpr::Like { value: Box::new(value), pattern: Box::new(pattern), ignore_case, negated };
        Ok(TypedExpr::new(ExprType::Bool, node))
    }

    fn is_null(self, value: &Expr, negated: bool) -> Result<TypedExpr, String> {
        let value = self.typed(value)?;
        Ok(TypedExpr::new(ExprType::Bool, FilterExpr::IsNull { value: Box::new(value.node), negated }))
    }

    fn is_bool(self, value: &Expr, expected: bool, negated: bool) -> Result<TypedExpr, String> {
        let value = self.boolean(value, "IS TRUE")?;
        Ok(TypedExpr::new(ExprType::Bool, FilterExpr::IsBool { value: Box::new(value), expected, negated }))
    }
}

fn negated_if(negated: bool, node: FilterExpr) -> TypedExpr {
    TypedExpr::new(ExprType::Bool, if negated { FilterExpr::Not(Box::new(node)) } else { node })
}

fn scalar_kind(scalar: ScalarType) -> ExprType {
    match scalar {
        ScalarType::Bool => ExprType::Bool,
        ScalarType::Int8 | ScalarType::Int16 | ScalarType::Int32 | ScalarType::Int64 => ExprType::Int,
        ScalarType::UInt8 | ScalarType::UInt16 | ScalarType::UInt32 => ExprType::Int,
        ScalarType::UInt64 => ExprType::UInt,
        ScalarType::Float16 | ScalarType::Float32 | ScalarType::Float64 => ExprType::Float,
    }
}

fn literal(value: &Value) -> Result<TypedExpr, String> {
    Ok(match value {
        Value::Number(digits, _) => number_literal(digits)?,
        Value::SingleQuotedString(text) => {
            TypedExpr::literal(ExprType::Text, StringViewArray::from(vec![text.as_str()]))
        }
        Value::HexStringLiteral(digits) => {
            TypedExpr::literal(ExprType::Bytes, BinaryViewArray::from(vec![hex_bytes(digits)?.as_slice()]))
        }
        Value::Boolean(value) => TypedExpr::literal(ExprType::Bool, BooleanArray::from(vec![*value])),
        Value::Null => TypedExpr::null(),
        other => return Err(format!("the literal {other} is not supported in a filter")),
    })
}

fn number_literal(digits: &str) -> Result<TypedExpr, String> {
    if let Ok(value) = digits.parse() {
        return Ok(TypedExpr::literal(ExprType::Int, Int64Array::from_value(value, 1)));
    }
    if let Ok(value) = digits.parse() {
        return Ok(TypedExpr::literal(ExprType::UInt, UInt64Array::from_value(value, 1)));
    }
    let value = digits.parse().map_err(|_| format!("`{digits}` is not a number"))?;
    Ok(TypedExpr::literal(ExprType::Float, Float64Array::from_value(value, 1)))
}

fn hex_bytes(digits: &str) -> Result<Vec<u8>, String> {
    let error = || format!("X'{digits}' is not hexadecimal");
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(error());
    }
    let byte = |pair: &[u8; 2]| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok()
    };
    pairs.iter().map(byte).collect::<Option<Vec<u8>>>().ok_or_else(error)
}
