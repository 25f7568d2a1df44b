//! Brace lists in URLs, as shells and WebDataset write them: `train-{000..146}.tar`, `{a,b}.csv`.

/// More URLs than this in one pattern are a typing mistake.
const MAX_EXPANSIONS: usize = 1_000_000;

/// Every text that the braces stand for, in order. A brace that holds neither `..` nor `,` stands for itself.
pub(crate) fn expand_braces(text: &str) -> Result<Vec<String>, String> {
    let Some((head, choices, tail)) = first_braces(text)? else { return Ok(vec![text.to_owned()]) };
    let tails = expand_braces(tail)?;
    if choices.len().saturating_mul(tails.len()) > MAX_EXPANSIONS {
        return Err(format!(
            "its braces stand for more than {MAX_EXPANSIONS} objects: use a prefix or a glob"
        ));
    }
    let mut all = Vec::with_capacity(choices.len() * tails.len());
    for choice in &choices {
        all.extend(tails.iter().map(|tail| format!("{head}{choice}{tail}")));
    }
    Ok(all)
}

type Braces<'a> = (&'a str, Vec<String>, &'a str);

fn first_braces(text: &str) -> Result<Option<Braces<'_>>, String> {
    let mut from = 0;
    while let Some(open) = text[from..].find('{').map(|at| at + from) {
        let Some(close) = text[open..].find('}').map(|at| at + open) else { return Ok(None) };
        let inside = &text[open + 1..close];
        if let Some((first, last)) = inside.split_once("..") {
            return Ok(Some((&text[..open], numbers(first, last)?, &text[close + 1..])));
        }
        if inside.contains(',') {
            let choices = inside.split(',').map(str::to_owned).collect();
            return Ok(Some((&text[..open], choices, &text[close + 1..])));
        }
        from = close + 1;
    }
    Ok(None)
}

fn numbers(first: &str, last: &str) -> Result<Vec<String>, String> {
    let bad = || format!("`{{{first}..{last}}}` is not a range of numbers such as `{{000..146}}`");
    let low: usize = first.parse().map_err(|_| bad())?;
    let high: usize = last.parse().map_err(|_| bad())?;
    if low > high || high - low >= MAX_EXPANSIONS {
        return Err(bad());
    }
    let width = if first.starts_with('0') { first.len() } else { 0 };
    Ok((low..=high).map(|number| format!("{number:0width$}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expands_ranges_and_lists() {
        assert_eq!(expand_braces("a-{08..10}.tar").unwrap(), ["a-08.tar", "a-09.tar", "a-10.tar"]);
        assert_eq!(expand_braces("{x,y}{1..2}").unwrap(), ["x1", "x2", "y1", "y2"]);
        assert_eq!(expand_braces("plain{0}").unwrap(), ["plain{0}"]);
        assert!(expand_braces("{a..b}").is_err());
        assert!(expand_braces("{1..9999999}").is_err());
    }
}
