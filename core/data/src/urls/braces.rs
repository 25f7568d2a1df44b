//! Brace lists in URLs, as shells and WebDataset write them: `train-{000..146}.tar`, `{a,b}.csv`.

/// Most bytes that the URLs of one pattern take together.
const MAX_EXPANDED_BYTES: usize = 256 << 20;

/// Every text that the braces stand for, in order, at most `most`. A brace that holds neither `..` nor `,` stands for itself.
///
/// # Errors
/// One sentence where they stand for more, or a range is none of numbers.
pub fn expand_braces(text: &str, most: usize) -> Result<Vec<String>, String> {
    let Some((head, choices, tail)) = first_braces(text, most)? else { return Ok(vec![text.to_owned()]) };
    let tails = expand_braces(tail, most)?;
    let count = choices.len().saturating_mul(tails.len());
    if count > most || count.saturating_mul(text.len()) > MAX_EXPANDED_BYTES {
        return Err(format!("its braces stand for more than {most} objects: use a prefix or a glob"));
    }
    let mut all = Vec::with_capacity(count);
    for choice in &choices {
        all.extend(tails.iter().map(|tail| format!("{head}{choice}{tail}")));
    }
    Ok(all)
}

type Braces<'a> = (&'a str, Vec<String>, &'a str);

fn first_braces(text: &str, most: usize) -> Result<Option<Braces<'_>>, String> {
    let mut from = 0;
    while let Some(open) = text[from..].find('{').map(|at| at + from) {
        let Some(close) = text[open..].find('}').map(|at| at + open) else { return Ok(None) };
        let inside = &text[open + 1..close];
        if let Some((first, last)) = inside.split_once("..") {
            return Ok(Some((&text[..open], numbers(first, last, most)?, &text[close + 1..])));
        }
        if inside.contains(',') {
            let choices = inside.split(',').map(str::to_owned).collect();
            return Ok(Some((&text[..open], choices, &text[close + 1..])));
        }
        from = close + 1;
    }
    Ok(None)
}

fn numbers(first: &str, last: &str, most: usize) -> Result<Vec<String>, String> {
    let bad = || format!("`{{{first}..{last}}}` is not a range of numbers such as `{{000..146}}`");
    let low: usize = first.parse().map_err(|_| bad())?;
    let high: usize = last.parse().map_err(|_| bad())?;
    if low > high || high - low >= most {
        return Err(bad());
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
    fn what_stands_for_too_much_is_refused_before_it_is_built() {
        assert!(expand("{0..999}{0..999}{0..999}").unwrap_err().contains("more than 1000000"));
        assert!(expand_braces("{0..9}{0..9}", 99).unwrap_err().contains("more than 99"));
        let long = format!("{{0..999999}}{}", "x".repeat(4096));
        assert!(expand(&long).unwrap_err().contains("use a prefix"));
        // Many braces in a row nest no deeper than a URL is long.
        assert!(expand(&"{a,b}".repeat(800)).is_err());
    }
}
