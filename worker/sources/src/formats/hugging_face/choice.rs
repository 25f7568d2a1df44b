//! Selects the configuration and the split of a dataset.

/// The configuration and the split that a pipeline selects.
#[derive(Debug, Clone, Default)]
pub(super) struct Choice {
    pub(super) config: Option<String>,
    pub(super) split: Option<String>,
}

/// Selects a name, such as a split. Without a wish, there must be only one.
///
/// # Errors
/// Returns a message that lists the names.
pub(super) fn choose<'a>(
    kind: &str,
    key: &str,
    names: &[&'a str],
    wanted: Option<&str>,
) -> Result<&'a str, String> {
    const MAX_LISTED: usize = 12;
    let listed = || {
        let more = if names.len() > MAX_LISTED { ", ..." } else { "" };
        let names: Vec<String> = names.iter().take(MAX_LISTED).map(|name| format!("`{name}`")).collect();
        names.join(", ") + more
    };
    match (wanted, names) {
        (Some(wanted), _) => names.iter().find(|name| **name == wanted).copied().ok_or_else(|| {
            format!("the dataset has no {kind} `{wanted}`: set `{key}` to one of {}", listed())
        }),
        (None, [only]) => Ok(only),
        (None, _) => Err(format!("the dataset has more than one {kind}: set `{key}` to one of {}", listed())),
    }
}
