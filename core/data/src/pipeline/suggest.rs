//! Nearest known names and lists of names, for messages about a name that is not known.

/// How alike two names must be, from 0 to 1, for one to be offered in place of the other.
const LIKENESS_MIN: f64 = 0.7;

/// The known name most like `name`, if any is like enough.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut best: Option<(f64, &str)> = None;
    for candidate in known {
        let likeness = likeness(name, candidate);
        if likeness >= LIKENESS_MIN && best.is_none_or(|(most, _)| likeness > most) {
            best = Some((likeness, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// `; did you mean `x`?`, or nothing where no known name is like enough.
pub(crate) fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map(|candidate| format!("; did you mean `{candidate}`?")).unwrap_or_default()
}

/// Names joined by commas, or `none`.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// How alike a part of a name is to the whole.
const LIKENESS_OF_PART: f64 = 0.72;

/// Typing slips (an edit distance), a shared beginning (Jaro-Winkler) or being a part of it, as `flip` of
/// `random_horizontal_flip`: whichever speaks most for the candidate.
fn likeness(name: &str, candidate: &str) -> f64 {
    let (name, candidate) = (name.to_lowercase(), candidate.to_lowercase());
    let slips = strsim::normalized_damerau_levenshtein(&name, &candidate) + 0.1;
    let beginning = strsim::jaro_winkler(&name, &candidate) - 0.1;
    let part = if candidate.split('_').any(|part| part == name) { LIKENESS_OF_PART } else { 0.0 };
    slips.max(beginning).max(part)
}
