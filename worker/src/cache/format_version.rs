//! The format versions of segment files.

/// The first bytes of every segment. The next byte is the format version.
const FORMAT_NAME: [u8; 7] = *b"FLROWS\0";

/// The first bytes of a segment with this format version.
pub(super) const fn magic(version: u8) -> [u8; 8] {
    let [a, b, c, d, e, f, g] = FORMAT_NAME;
    [a, b, c, d, e, f, g, version]
}

/// Returns an error message if a file that begins with `found` is a segment with a different format version.
pub(super) fn version_mismatch(found: &[u8], version: u8) -> Option<String> {
    match found.strip_prefix(&FORMAT_NAME) {
        Some(&[other, ..]) if other != version => Some(format!(
            "the segment has format version {other}, but this release reads version {version}: its rows will be recomputed; delete the file to free its space"
        )),
        _ => None,
    }
}
