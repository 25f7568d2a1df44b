//! Checks the types of function calls and CASE expressions.

use sqlparser::ast::{
    CaseWhen, Expr, Function as Call, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments,
};

use super::expression::{ExprType, FilterExpr, ScalarFunction, TypedExpr, unify};

/// The names of all functions, for error messages.
const FUNCTIONS: &str = "length, char_length, octet_length, lower, upper, abs, coalesce";

/// Determines the types of expressions. `context` is the surrounding operator or function, for error messages.
pub(super) trait TypeExpressions: Copy {
    /// Determines the type of an expression.
    fn typed(self, expression: &Expr) -> Result<TypedExpr, String>;

    /// Checks that an expression is a boolean or NULL.
    fn boolean(self, expression: &Expr, context: &str) -> Result<FilterExpr, String> {
        self.with_type(expression, ExprType::Bool, context)
    }

    /// Checks that an expression is text or NULL.
    fn text(self, expression: &Expr, context: &str) -> Result<FilterExpr, String> {
        self.with_type(expression, ExprType::Text, context)
    }

    /// Checks that an expression has this type or is NULL.
    fn with_type(self, expression: &Expr, kind: ExprType, context: &str) -> Result<FilterExpr, String> {
        let typed = self.typed(expression)?;
        if typed.kind == kind || typed.kind == ExprType::Null {
            return Ok(typed.into_kind(kind).node);
        }
        Err(format!("{context} requires {kind}, but `{expression}` is {}", typed.kind))
    }

    /// Checks that an expression is a number or NULL.
    fn number(self, expression: &Expr, context: &str) -> Result<TypedExpr, String> {
        let typed = self.typed(expression)?;
        match typed.kind {
            ExprType::Null => Ok(typed.into_kind(ExprType::Int)),
            kind if kind.is_number() => Ok(typed),
            kind => Err(format!("{context} requires a number, but `{expression}` is {kind}")),
        }
    }
}

/// Determines the type of a function call.
pub(super) fn call(analysis: impl TypeExpressions, call: &Call) -> Result<TypedExpr, String> {
    let name = call.name.to_string().to_lowercase();
    let arguments = plain_arguments(call).ok_or_else(|| format!("`{call}` is not supported in a filter"))?;
    let one = || match arguments[..] {
        [argument] => Ok(argument),
        _ => Err(format!("{name} requires one argument, but `{call}` has {}", arguments.len())),
    };
    match name.as_str() {
        "length" => length(analysis, one()?),
        "char_length" | "character_length" => {
            let text = analysis.text(one()?, &name)?;
            Ok(TypedExpr::new(
                ExprType::Int,
                FilterExpr::Call(ScalarFunction::Length, ExprType::Text, Box::new(text)),
            ))
        }
        "octet_length" => {
            let typed = analysis.typed(one()?)?;
            match typed.kind {
                ExprType::Text | ExprType::Bytes => Ok(TypedExpr::new(
                    ExprType::Int,
                    FilterExpr::Call(ScalarFunction::OctetLength, typed.kind, Box::new(typed.node)),
                )),
                kind => Err(format!("octet_length requires text or bytes, but `{}` is {kind}", arguments[0])),
            }
        }
        "lower" | "upper" => {
            let function = if name == "lower" { ScalarFunction::Lower } else { ScalarFunction::Upper };
            let text = analysis.text(one()?, &name)?;
            Ok(TypedExpr::new(ExprType::Text, FilterExpr::Call(function, ExprType::Text, Box::new(text))))
        }
        "abs" => {
            let number = analysis.number(one()?, "abs")?;
            let node = FilterExpr::Call(ScalarFunction::Abs, number.kind, Box::new(number.node));
            Ok(TypedExpr::new(number.kind, node))
        }
        "coalesce" if !arguments.is_empty() => coalesce(analysis, &arguments),
        _ => Err(format!("unknown function `{name}`; the functions are {FUNCTIONS}")),
    }
}

/// Returns the arguments of a call. `None` if the call has clauses such as DISTINCT, OVER or FILTER.
fn plain_arguments(call: &Call) -> Option<Vec<&Expr>> {
    let plain = call.filter.is_none() && call.over.is_none() && call.null_treatment.is_none();
    let FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses }) =
        &call.args
    else {
        return None;
    };
    if !plain || !clauses.is_empty() || !call.within_group.is_empty() {
        return None;
    }
    let expression = |argument| match argument {
        &FunctionArg::Unnamed(FunctionArgExpr::Expr(ref expression)) => Some(expression),
        _ => None,
    };
    args.iter().map(expression).collect()
}

fn length(analysis: impl TypeExpressions, argument: &Expr) -> Result<TypedExpr, String> {
    let typed = analysis.typed(argument)?;
    match typed.kind {
        ExprType::Text | ExprType::Bytes | ExprType::List => Ok(TypedExpr::new(
            ExprType::Int,
            FilterExpr::Call(ScalarFunction::Length, typed.kind, Box::new(typed.node)),
        )),
        ExprType::Null => Ok(TypedExpr::null().into_kind(ExprType::Int)),
        kind => Err(format!("length requires text, bytes or a list, but `{argument}` is {kind}")),
    }
}

fn coalesce(analysis: impl TypeExpressions, arguments: &[&Expr]) -> Result<TypedExpr, String> {
    let mut values = Vec::with_capacity(arguments.len());
    for argument in arguments {
        values.push((analysis.typed(argument)?, argument.to_string()));
    }
    let kind = common_kind(&values)?;
    let values = values.into_iter().map(|(value, _)| value.into_kind(kind).node).collect();
    Ok(TypedExpr::new(kind, FilterExpr::Coalesce(values)))
}

/// Determines the type of `CASE WHEN condition THEN result ... ELSE result END`.
pub(super) fn case(
    analysis: impl TypeExpressions,
    conditions: &[CaseWhen],
    otherwise: Option<&Expr>,
) -> Result<TypedExpr, String> {
    let mut tests = Vec::with_capacity(conditions.len());
    let mut results = Vec::with_capacity(conditions.len() + 1);
    for CaseWhen { condition, result } in conditions {
        tests.push(analysis.boolean(condition, "WHEN")?);
        results.push((analysis.typed(result)?, result.to_string()));
    }
    match otherwise {
        Some(otherwise) => results.push((analysis.typed(otherwise)?, otherwise.to_string())),
        None => results.push((TypedExpr::null(), "NULL".to_owned())),
    }
    let kind = common_kind(&results)?;
    let mut results: Vec<FilterExpr> =
        results.into_iter().map(|(result, _)| result.into_kind(kind).node).collect();
    let otherwise = results.pop().expect("the last result was pushed above");
    let branches = tests.into_iter().zip(results).collect();
    Ok(TypedExpr::new(kind, FilterExpr::Case { branches, otherwise: Box::new(otherwise) }))
}

/// Returns the common type of all values. Each value has its SQL text, for error messages.
fn common_kind(values: &[(TypedExpr, String)]) -> Result<ExprType, String> {
    let mut common = TypedExpr::null();
    let mut common_text = "NULL";
    for (value, text) in values {
        if matches!(value.kind, ExprType::List | ExprType::Tensor) {
            return Err(format!("`{text}` is {}, which cannot be a result of CASE or coalesce", value.kind));
        }
        let kinds = (common.kind, value.kind);
        let Some((widened, _)) = unify(common, value.clone()) else {
            return Err(format!(
                "`{common_text}` is {}, but `{text}` is {}: all values must have the same type",
                kinds.0, kinds.1
            ));
        };
        if value.kind != ExprType::Null {
            common_text = text;
        }
        common = widened;
    }
    Ok(if common.kind == ExprType::Null { ExprType::Bool } else { common.kind })
}
