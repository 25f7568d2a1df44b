//! The choice of a column: by its name, by its position, or the positions of the rows themselves.

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::build) enum ColumnChoice {
    /// The column with this name.
    Name(String),
    /// The column at this position.
    Index(usize),
    /// The position of each row in the table.
    Row,
}

/// The text of [`ColumnChoice::Row`].
const ROW_TEXT: &str = "#row";

impl ColumnChoice {
    /// Parses a name, a position, or `#row`.
    pub(in crate::build) fn parse(text: &str) -> Self {
        match text.parse::<usize>() {
            Ok(index) => Self::Index(index),
            Err(_) if text == ROW_TEXT => Self::Row,
            Err(_) => Self::Name(text.to_owned()),
        }
    }

    /// Replaces a name by the position of the column.
    pub(super) fn resolve(&self, names: &[String]) -> Result<Self, String> {
        let listed = || {
            /// Maximum number of names in a message.
            const MAX_LISTED: usize = 20;
            let more = if names.len() > MAX_LISTED { ", ..." } else { "" };
            let listed: Vec<String> =
                names.iter().take(MAX_LISTED).map(|name| format!("`{}`", name.escape_debug())).collect();
            format!("the columns are {}{more}", listed.join(", "))
        };
        match self {
            Self::Name(name) => match names.iter().position(|other| other == name) {
                Some(index) => Ok(Self::Index(index)),
                None => Err(format!("the column `{}` does not exist: {}", name.escape_debug(), listed())),
            },
            Self::Index(index) if *index >= names.len() => {
                Err(format!("the table has no column {index}, counted from 0: {}", listed()))
            }
            other => Ok(other.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name_and_position() {
        let names = ["src".to_owned(), "dst".to_owned()];
        assert_eq!(ColumnChoice::parse("dst").resolve(&names), Ok(ColumnChoice::Index(1)));
        assert_eq!(ColumnChoice::parse("0").resolve(&names), Ok(ColumnChoice::Index(0)));
        assert_eq!(ColumnChoice::parse("#row").resolve(&names), Ok(ColumnChoice::Row));
        assert_eq!(
            ColumnChoice::parse("to").resolve(&names).unwrap_err(),
            "the column `to` does not exist: the columns are `src`, `dst`"
        );
        assert!(
            ColumnChoice::parse("2").resolve(&names).unwrap_err().contains("no column 2, counted from 0")
        );
    }
}
