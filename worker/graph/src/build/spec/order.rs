//! The order in which a build stores nodes, as text: `none`, `degree` or `vip:SEEDS:FANOUTS`.

use feedline_data::graph::description::check_fanouts;
use serde::Deserialize;

/// The order of the nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum OrderSpec {
    /// The user's order.
    #[default]
    None,
    /// By the number of edges that begin at a node.
    Degree,
    /// By the probability that a batch contains a node.
    Vip(VipSpec),
}

/// The batches for which nodes are ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VipSpec {
    /// The name of the seed set.
    pub seeds: String,
    /// The number of neighbors by hop; -1 for all.
    pub fanouts: Vec<i32>,
}

impl OrderSpec {
    /// Parses `none`, `degree` or `vip:SEEDS:FANOUTS`.
    ///
    /// # Errors
    /// Returns a message that lists the orders.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "degree" => Ok(Self::Degree),
            _ => match text.strip_prefix("vip") {
                Some(batches) if batches.is_empty() || batches.starts_with(':') => {
                    VipSpec::parse(text, batches).map(Self::Vip)
                }
                _ => Err(format!(
                    "invalid order `{}`: expected `none`, `degree` or `vip:SEEDS:FANOUTS`",
                    text.escape_debug()
                )),
            },
        }
    }
}

impl VipSpec {
    /// Parses `:SEEDS:FANOUTS`. `text` is the whole order.
    fn parse(text: &str, batches: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "invalid order `{}`: expected a seed set and the fanouts of the hops, such as vip:train:15,10,5",
                text.escape_debug()
            )
        };
        let (seeds, fanouts) =
            batches.strip_prefix(':').and_then(|batches| batches.split_once(':')).ok_or_else(invalid)?;
        let fanouts = fanouts.split(',').map(|fanout| fanout.trim().parse::<i32>());
        let fanouts = fanouts.collect::<Result<Vec<_>, _>>().map_err(|_| invalid())?;
        if seeds.is_empty() {
            return Err(invalid());
        }
        check_fanouts(&fanouts)?;
        Ok(Self { seeds: seeds.to_owned(), fanouts })
    }
}

impl TryFrom<String> for OrderSpec {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_parsed() {
        assert_eq!(OrderSpec::parse("none"), Ok(OrderSpec::default()));
        assert_eq!(OrderSpec::parse("degree"), Ok(OrderSpec::Degree));
        let vip = VipSpec { seeds: "train".to_owned(), fanouts: vec![15, 10, -1] };
        assert_eq!(OrderSpec::parse("vip:train:15,10,-1"), Ok(OrderSpec::Vip(vip)));
    }

    #[test]
    fn invalid_orders_are_rejected_with_an_example() {
        for text in ["vip", "vip:", "vip:train", "vip::5", "vip:train:", "vip:train:a", "vip:train:5,,5"] {
            let error = OrderSpec::parse(text).unwrap_err();
            assert!(error.ends_with("such as vip:train:15,10,5"), "{error}");
        }
        assert!(OrderSpec::parse("vip:train:-2").unwrap_err().contains("the invalid fanout -2"));
        for text in ["metis", "vipper"] {
            let error = OrderSpec::parse(text).unwrap_err();
            assert!(error.contains("expected `none`, `degree` or `vip:SEEDS:FANOUTS`"), "{error}");
        }
    }
}
