//! Parses the shared files of AWS: sections with `key = value` lines. Invalid lines are ignored, as the AWS tools do.

use super::credential::Section;

/// Returns the sections in order. Indented lines belong to a nested setting, which is ignored. Keys are in lower case.
pub(super) fn parse(text: &str) -> Vec<(String, Section)> {
    let mut sections: Vec<(String, Section)> = Vec::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(title) = trimmed.strip_prefix('[') {
            let title = title.split(']').next().unwrap_or_default().trim();
            sections.push((title.to_owned(), Section::new()));
            continue;
        }
        if line.starts_with([' ', '\t']) {
            continue;
        }
        let (Some((_, section)), Some((key, value))) = (sections.last_mut(), trimmed.split_once('=')) else {
            continue;
        };
        section.insert(key.trim().to_lowercase(), without_comment(value.trim()).to_owned());
    }
    sections
}

/// Removes a comment, which starts with a space and `#` or `;`.
fn without_comment(value: &str) -> &str {
    let starts = [" #", " ;", "\t#", "\t;"].into_iter().filter_map(|start| value.find(start));
    starts.min().map_or(value, |end| value[..end].trim_end())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sections_keys_and_comments_are_parsed() {
        let text = "ignored = 1\n# comment\n[default]\nregion = eu-west-1 ; here\nS3 =\n  max = 1\n\n[profile a b]\nrole_arn=x=y\nodd line\n[\n";
        let sections = parse(text);
        let titles: Vec<&str> = sections.iter().map(|(title, _)| title.as_str()).collect();
        assert_eq!(titles, ["default", "profile a b", ""]);
        let default: Vec<_> =
            sections[0].1.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(default, [("region", "eu-west-1"), ("s3", "")]);
        assert_eq!(sections[1].1["role_arn"], "x=y");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed(text in "(?s).{0,200}") {
            parse(&text);
        }

        #[test]
        fn written_values_are_parsed(values in proptest::collection::btree_map("[a-z_]{1,9}", "[A-Za-z0-9/+=]{1,20}", 0..9)) {
            let lines: String = values.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
            let sections = parse(&format!("[p]\n{lines}"));
            prop_assert_eq!(&sections[0].1, &values);
        }
    }
}
