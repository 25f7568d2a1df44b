//! The versions of the files in which tiers store rows.

/// The first bytes of every file. The version is the byte after them.
const NAME: [u8; 7] = *b"FLROWS\0";

/// The first bytes of a file of this version.
pub(super) const fn magic(version: u8) -> [u8; 8] {
    let [a, b, c, d, e, f, g] = NAME;
    [a, b, c, d, e, f, g, version]
}

/// The reason why a file that begins with `found` is not read, if its version is the reason.
pub(super) fn other_version(found: &[u8], version: u8) -> Option<String> {
    match found.strip_prefix(&NAME) {
        Some(&[other, ..]) if other != version => Some(format!(
            "it has format version {other}, and this release reads version {version}: its rows are computed again; delete the \
             file to free its space"
        )),
        _ => None,
    }
}
