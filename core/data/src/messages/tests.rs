//! Tests of messages.

use super::*;

#[test]
fn the_index_key_depends_on_tenant_and_source() {
    let key = |tenant: &str, url: &str| source_key(tenant, &Source::text(url));
    assert_eq!(key("a", "/x"), key("a", "/x"));
    assert_ne!(key("a", "/x"), key("b", "/x"));
    assert_ne!(key("a", "/x"), key("a", "/y"));
    let found = key("", "/x");
    assert!(found.len() == 64 && found.bytes().all(|digit| digit.is_ascii_hexdigit()), "{found}");
}
