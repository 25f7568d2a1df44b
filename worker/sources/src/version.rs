//! The version of an object: its entity tag, or its modification time if it has no entity tag.

use object_store::ObjectMeta;

/// Length of an RFC 3339 time up to the seconds.
const TIME_CHARS_TO_SECOND: usize = "2000-01-01T00:00:00".len();

/// The version that a listing or a response describes.
pub(crate) fn version_of(meta: &ObjectMeta) -> String {
    match &meta.e_tag {
        Some(tag) if !tag.is_empty() => tag.clone(),
        _ => meta.last_modified.to_rfc3339(),
    }
}

/// Whether a response has this version. Modification times are compared in seconds, because listings may have a finer resolution.
/// Entity tags are compared without the mark of weak tags, because a proxy that compresses responses marks the tags of the store.
pub(crate) fn is_version(meta: &ObjectMeta, version: &str) -> bool {
    if is_time(version) {
        return meta.last_modified.to_rfc3339().get(..TIME_CHARS_TO_SECOND)
            == version.get(..TIME_CHARS_TO_SECOND);
    }
    meta.e_tag.as_deref().is_some_and(|tag| opaque_tag(tag) == opaque_tag(version))
}

/// The value of the `If-Match` header. `None` if the version is a modification time or a weak tag, which never matches.
pub(crate) fn if_match_tag(version: &str) -> Option<String> {
    (!is_time(version) && !version.starts_with("W/")).then(|| version.to_owned())
}

/// Writes the entity tag of a listing in the form of the `ETag` header. Listings of Azure contain tags without quotes.
pub(crate) fn quoted_tag(tag: String) -> String {
    if tag.is_empty() || tag.ends_with('"') { tag } else { format!("\"{tag}\"") }
}

/// The tag without quotes and without the mark of weak tags.
fn opaque_tag(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

fn is_time(version: &str) -> bool {
    version.as_bytes().get(10) == Some(&b'T') && version.ends_with("+00:00")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(e_tag: Option<&str>, modified: &str) -> ObjectMeta {
        let last_modified = modified.parse().expect("it is a time");
        ObjectMeta {
            location: "x".into(),
            last_modified,
            size: 1,
            e_tag: e_tag.map(str::to_owned),
            version: None,
        }
    }

    #[test]
    fn only_tags_that_can_match_are_sent() {
        assert_eq!(if_match_tag("\"abc\"").as_deref(), Some("\"abc\""));
        assert_eq!(if_match_tag("W/\"abc\""), None);
        assert_eq!(if_match_tag("2026-01-01T00:00:00+00:00"), None);
    }

    #[test]
    fn tags_of_listings_have_the_form_of_tags_of_responses() {
        for (listed, tag) in
            [("0x8DC", "\"0x8DC\""), ("\"0x8DC\"", "\"0x8DC\""), ("W/\"a\"", "W/\"a\""), ("", "")]
        {
            assert_eq!(quoted_tag(listed.to_owned()), tag);
        }
    }

    #[test]
    fn quotes_and_the_mark_of_weak_tags_do_not_change_a_version() {
        let time = "2026-01-01T00:00:00Z";
        for tag in ["0x8DC", "\"0x8DC\"", "W/\"0x8DC\""] {
            for version in ["0x8DC", "\"0x8DC\"", "W/\"0x8DC\""] {
                assert!(is_version(&meta(Some(tag), time), version), "{tag} {version}");
            }
            assert!(!is_version(&meta(Some(tag), time), "\"0x8DD\""), "{tag}");
        }
        assert!(!is_version(&meta(None, time), "\"0x8DC\""));
    }

    #[test]
    fn modification_times_are_compared_in_seconds() {
        let version = version_of(&meta(None, "2026-01-01T00:00:01.5Z"));
        assert!(is_version(&meta(None, "2026-01-01T00:00:01Z"), &version));
        assert!(!is_version(&meta(None, "2026-01-01T00:00:02Z"), &version));
    }
}
