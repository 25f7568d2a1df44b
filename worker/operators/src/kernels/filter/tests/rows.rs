//! Tests of random expressions: the vectorized evaluation equals a row-by-row evaluation with `Option` for null.

use arrow::array::{BooleanArray, Int64Array, StringViewArray};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use proptest::prelude::*;

use crate::testing::{arrow, build, chunk, run};

/// A row of the columns `a` and `b` (whole numbers), `p` (truth) and `t` (text).
#[derive(Debug, Clone)]
struct Row {
    a: Option<i64>,
    b: Option<i64>,
    p: Option<bool>,
    t: Option<String>,
}

#[derive(Debug, Clone)]
enum Number {
    A,
    B,
    Literal(i64),
    Length,
    Binary(char, Box<Number>, Box<Number>),
    Negate(Box<Number>),
    Coalesce(Box<Number>, Box<Number>),
    Case(Box<Truth>, Box<Number>, Box<Number>),
}

#[derive(Debug, Clone)]
enum Truth {
    P,
    Compare(&'static str, Number, Number),
    And(Box<Truth>, Box<Truth>),
    Or(Box<Truth>, Box<Truth>),
    Not(Box<Truth>),
    IsNull(Number),
    In(Number, Vec<Number>, bool),
    Between(Number, Number, Number),
    Prefix(String),
}

impl Number {
    fn sql(&self) -> String {
        match self {
            Self::A => "a".to_owned(),
            Self::B => "b".to_owned(),
            Self::Literal(value) => format!("({value})"),
            Self::Length => "length(t)".to_owned(),
            Self::Binary(op, x, y) => format!("({} {op} {})", x.sql(), y.sql()),
            Self::Negate(x) => format!("(- {})", x.sql()),
            Self::Coalesce(x, y) => format!("coalesce({}, {})", x.sql(), y.sql()),
            Self::Case(when, x, y) => {
                format!("CASE WHEN {} THEN {} ELSE {} END", when.sql(), x.sql(), y.sql())
            }
        }
    }

    fn of(&self, row: &Row) -> Option<i64> {
        match self {
            Self::A => row.a,
            Self::B => row.b,
            Self::Literal(value) => Some(*value),
            Self::Length => row.t.as_ref().map(|text| text.chars().count() as i64),
            Self::Binary(op, x, y) => {
                let (x, y) = (x.of(row)?, y.of(row)?);
                match op {
                    '+' => x.checked_add(y),
                    '-' => x.checked_sub(y),
                    '*' => x.checked_mul(y),
                    '/' => x.checked_div(y),
                    _ => (y != 0).then(|| x.wrapping_rem(y)),
                }
            }
            Self::Negate(x) => x.of(row)?.checked_neg(),
            Self::Coalesce(x, y) => x.of(row).or_else(|| y.of(row)),
            Self::Case(when, x, y) => {
                if when.of(row) == Some(true) {
                    x.of(row)
                } else {
                    y.of(row)
                }
            }
        }
    }
}

impl Truth {
    fn sql(&self) -> String {
        match self {
            Self::P => "p".to_owned(),
            Self::Compare(op, x, y) => format!("{} {op} {}", x.sql(), y.sql()),
            Self::And(x, y) => format!("({} AND {})", x.sql(), y.sql()),
            Self::Or(x, y) => format!("({} OR {})", x.sql(), y.sql()),
            Self::Not(x) => format!("(NOT ({}))", x.sql()),
            Self::IsNull(x) => format!("({} IS NULL)", x.sql()),
            Self::In(x, items, negated) => {
                let items: Vec<String> = items.iter().map(Number::sql).collect();
                format!("({} {}IN ({}))", x.sql(), if *negated { "NOT " } else { "" }, items.join(", "))
            }
            Self::Between(x, low, high) => format!("({} BETWEEN {} AND {})", x.sql(), low.sql(), high.sql()),
            Self::Prefix(prefix) => format!("t LIKE '{prefix}%'"),
        }
    }

    fn of(&self, row: &Row) -> Option<bool> {
        let and = |x: Option<bool>, y: Option<bool>| match (x, y) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        };
        let not = |x: Option<bool>| x.map(|x| !x);
        match self {
            Self::P => row.p,
            Self::Compare(op, x, y) => {
                let order = x.of(row)?.cmp(&y.of(row)?);
                Some(match *op {
                    "=" => order.is_eq(),
                    "<>" => order.is_ne(),
                    "<" => order.is_lt(),
                    "<=" => order.is_le(),
                    ">" => order.is_gt(),
                    _ => order.is_ge(),
                })
            }
            Self::And(x, y) => and(x.of(row), y.of(row)),
            Self::Or(x, y) => not(and(not(x.of(row)), not(y.of(row)))),
            Self::Not(x) => not(x.of(row)),
            Self::IsNull(x) => Some(x.of(row).is_none()),
            Self::In(x, items, negated) => {
                let equal = |item: &Number| Some(x.of(row)? == item.of(row)?);
                let mut none = Some(true);
                for item in items {
                    none = and(none, not(equal(item)));
                }
                if *negated { none } else { not(none) }
            }
            Self::Between(x, low, high) => {
                let above = x.of(row).zip(low.of(row)).map(|(x, low)| x >= low);
                let below = x.of(row).zip(high.of(row)).map(|(x, high)| x <= high);
                and(above, below)
            }
            Self::Prefix(prefix) => row.t.as_ref().map(|text| text.starts_with(prefix)),
        }
    }
}

fn whole() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -4i64..5, 1 => Just(i64::MAX), 1 => Just(i64::MIN)]
}

fn number(truth: BoxedStrategy<Truth>) -> BoxedStrategy<Number> {
    let leaf = prop_oneof![
        Just(Number::A),
        Just(Number::B),
        Just(Number::Length),
        whole().prop_map(Number::Literal)
    ];
    leaf.prop_recursive(3, 12, 3, move |inner| {
        let pair = (inner.clone(), inner.clone());
        prop_oneof![
            (prop::sample::select(vec!['+', '-', '*', '/', '%']), pair.clone())
                .prop_map(|(op, (x, y))| Number::Binary(op, x.into(), y.into())),
            inner.clone().prop_map(|x| Number::Negate(x.into())),
            pair.clone().prop_map(|(x, y)| Number::Coalesce(x.into(), y.into())),
            (truth.clone(), pair).prop_map(|(when, (x, y))| Number::Case(when.into(), x.into(), y.into())),
        ]
    })
    .boxed()
}

fn truth() -> BoxedStrategy<Truth> {
    let number = number(Just(Truth::P).boxed());
    let compare = prop::sample::select(vec!["=", "<>", "<", "<=", ">", ">="]);
    let leaf = prop_oneof![
        Just(Truth::P),
        (compare, number.clone(), number.clone()).prop_map(|(op, x, y)| Truth::Compare(op, x, y)),
        number.clone().prop_map(Truth::IsNull),
        (number.clone(), prop::collection::vec(number.clone(), 1..4), any::<bool>())
            .prop_map(|(x, items, negated)| Truth::In(x, items, negated)),
        (number.clone(), number.clone(), number).prop_map(|(x, low, high)| Truth::Between(x, low, high)),
        "[ab]{0,2}".prop_map(Truth::Prefix),
    ];
    leaf.prop_recursive(3, 12, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(x, y)| Truth::And(x.into(), y.into())),
            (inner.clone(), inner.clone()).prop_map(|(x, y)| Truth::Or(x.into(), y.into())),
            inner.prop_map(|x| Truth::Not(x.into())),
        ]
    })
    .boxed()
}

fn row() -> impl Strategy<Value = Row> {
    let text = prop::option::of("[abö]{0,3}");
    (prop::option::of(whole()), prop::option::of(whole()), prop::option::of(any::<bool>()), text)
        .prop_map(|(a, b, p, t)| Row { a, b, p, t })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn vectorised_and_row_by_row_agree(truth in truth(), rows in prop::collection::vec(row(), 0..12)) {
        let scalar = ColumnType::Scalar;
        let schema = Schema::new([
            ("a", scalar(ScalarType::Int64)), ("b", scalar(ScalarType::Int64)), ("p", scalar(ScalarType::Bool)),
            ("t", ColumnType::Utf8),
        ]);
        let operators = build(&schema, vec![serde_json::json!({"filter": {"where": truth.sql()}})]);
        let mut chunk = chunk([
            ("a", arrow(rows.iter().map(|row| row.a).collect::<Int64Array>())),
            ("b", arrow(rows.iter().map(|row| row.b).collect::<Int64Array>())),
            ("p", arrow(rows.iter().map(|row| row.p).collect::<BooleanArray>())),
            ("t", arrow(rows.iter().map(|row| row.t.clone()).collect::<StringViewArray>())),
        ]);
        run(&operators, &mut chunk);
        let expected: Vec<u64> =
            (0..rows.len()).filter(|&at| truth.of(&rows[at]) == Some(true)).map(|at| at as u64).collect();
        prop_assert_eq!(chunk.row_ids, expected, "{}", truth.sql());
    }
}
