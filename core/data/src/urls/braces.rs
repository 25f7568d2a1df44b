//! Brace expansion in URLs, as in shells and WebDataset: `train-{000..146}.tar`, `{a,b}.csv`.

/// Maximum total size in bytes of the URLs that one pattern expands to.
const MAX_EXPANDED_BYTES: usize = 256 << 20;

/// Expands the braces of a URL to at most `max` URLs, in order. Braces without `..` and `,` are kept unchanged.
///
/// # Errors
/// Returns a message if the limit is exceeded or a range is not a range of numbers.
pub fn expand_braces(text: &str, max: usize) -> Result<Vec<String>, String> {
    let Some((head, choices, tail)) = first_braces(text, max)? else { return Ok(vec![text.to_owned()]) };
    let tails = expand_braces(tail, max)?;
    let count = choices.len().saturating_mul(tails.len());
    if count > max || count.saturating_mul(text.len()) > MAX_EXPANDED_BYTES {
        return Err(format!(
            "the braces in the URL expand to more than {max} objects: use a prefix or a glob"
        ));
    }
    let mut all = Vec::with_capacity(count);
    for choice in &choices {
        all.extend(tails.iter().map(|tail| format!("{head}{choice}{tail}")));
    }
    Ok(all)
}

/// The text before the first braces, their choices, and the text after them.
type Braces<'a> = (&'a str, Vec<String>, &'a str);

fn first_braces(text: &str, max: usize) -> Result<Option<Braces<'_>>, String> {
    let mut from = 0;
    while let Some(open) = text[from..].find('{').map(|at| at + from) {
        let Some(close) = text[open..].find('}').map(|at| at + open) else { return Ok(None) };
        let inside = &text[open + 1..close];
        if let Some((first, last)) = inside.split_once("..") {
            return Ok(Some((&text[..open], expand_range(first, last, max)?, &text[close + 1..])));
        }
        if inside.contains(',') {
            let choices = inside.split(',').map(str::to_owned).collect();
            return Ok(Some((&text[..open], choices, &text[close + 1..])));
        }
        from = close + 1;
    }
    Ok(None)
}

fn expand_range(first: &str, last: &str, max: usize) -> Result<Vec<String>, String> {
    let error = || {
        format!(
            "invalid range `{{{first}..{last}}}`: expected numbers in ascending order, such as `{{000..146}}`"
        )
    };
    let low: usize = first.parse().map_err(|_| error())?;
    let high: usize = last.parse().map_err(|_| error())?;
    if low > high || high - low >= max {
        return Err(error());
    }
    let width = if first.starts_with('0') { first.len() } else { 0 };
    Ok((low..=high).map(|number| format!("{number:0width$}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(text: &str) -> Result<Vec<String>, String> {
        expand_braces(text, 1_000_000)
    }

    #[test]
    fn expands_ranges_and_lists() {
        assert_eq!(expand("a-{08..10}.tar").unwrap(), ["a-08.tar", "a-09.tar", "a-10.tar"]);
        assert_eq!(expand("{x,y}{1..2}").unwrap(), ["x1", "x2", "y1", "y2"]);
        assert_eq!(expand("plain{0}").unwrap(), ["plain{0}"]);
        assert!(expand("{a..b}").is_err());
        assert!(expand("{1..9999999}").is_err());
    }

    #[test]
    fn large_patterns_are_rejected_before_they_are_expanded() {
        assert!(expand("{0..999}{0..999}{0..999}").unwrap_err().contains("more than 1000000"));
        assert!(expand_braces("{0..9}{0..9}", 99).unwrap_err().contains("more than 99"));
        let long = format!("{{0..999999}}{}", "x".repeat(4096));
        assert!(expand(&long).unwrap_err().contains("use a prefix"));
        // The recursion depth is bounded by the length of the URL.
        assert!(expand(&"{a,b}".repeat(800)).is_err());
    }
}
