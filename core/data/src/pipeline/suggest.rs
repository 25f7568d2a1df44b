//! Suggestions of known names for error messages about unknown names.

/// Minimum similarity, from 0 to 1, at which a known name is suggested.
const MIN_SIMILARITY: f64 = 0.7;

/// Returns the known name that is most similar to `name`, or `None` if no known name is similar enough.
pub(super) fn nearest_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut best: Option<(f64, &str)> = None;
    for candidate in known {
        let similarity = similarity(name, candidate);
        if similarity >= MIN_SIMILARITY && best.is_none_or(|(highest, _)| similarity > highest) {
            best = Some((similarity, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Returns `; did you mean `x`?`, or an empty string if no known name is similar enough.
pub(crate) fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest_name(name, known).map(|candidate| format!("; did you mean `{candidate}`?")).unwrap_or_default()
}

/// Joins names with commas. Returns `none` for an empty list.
pub(crate) fn join_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Similarity of a name and a candidate that contains the name as a word.
const WORD_SIMILARITY: f64 = 0.72;

/// Returns the highest of three similarities: edit distance for typing errors, Jaro-Winkler for a common prefix, and
/// [`WORD_SIMILARITY`] for a word of the candidate, such as `flip` of `random_horizontal_flip`.
fn similarity(name: &str, candidate: &str) -> f64 {
    let (name, candidate) = (name.to_lowercase(), candidate.to_lowercase());
    let edits = strsim::normalized_damerau_levenshtein(&name, &candidate) + 0.1;
    let prefix = strsim::jaro_winkler(&name, &candidate) - 0.1;
    let word = if candidate.split('_').any(|word| word == name) { WORD_SIMILARITY } else { 0.0 };
    edits.max(prefix).max(word)
}
