//! Tests of parsing the tenants file, and of the error messages.

use expect_test::{Expect, expect};

use super::*;

const FILE: &str = "\
default: { jobs: 2, cores: 8 }
tenants:
  vision:
    jobs: 10
    cores: 64.5
    cache_bytes: 2TiB
    priority: 2
    urls: [s3://vision, /data/vision]
    credentials: [vision]
  text: {}
";

#[test]
fn tenants_without_an_entry_have_the_default_quota() {
    let tenants = parse(FILE, "t.yaml").unwrap();
    tenants.check().unwrap();
    let vision = Quota {
        jobs: Some(10),
        cores: Some(64.5),
        cache_bytes: Some(2.0 * (1u64 << 40) as f64),
        priority: 2.0,
    };
    assert_eq!(tenants.quota_of("vision"), &vision);
    assert_eq!(
        tenants.quota_of("text"),
        &Quota::default(),
        "the default does not apply to a tenant with an entry"
    );
    let reads = TenantReads {
        urls: UrlPolicy::new(["s3://vision", "/data/vision"]).unwrap(),
        credentials: Some(vec!["vision".to_owned()]),
    };
    assert_eq!(tenants.reads_of("vision"), &reads);
    assert_eq!(tenants.reads_of("text"), &TenantReads::default());
    assert_eq!((tenants.quota_of("other").jobs, tenants.quota_of("").cores), (Some(2), Some(8.0)));
}

#[test]
fn keys_without_a_value_have_no_limits() {
    let tenants = parse("default:\ntenants:\n  text:\n", "t.yaml").unwrap();
    assert_eq!(tenants.tenants, [("text".to_owned(), Quota::default())].into());
    assert_eq!(tenants.default, Quota::default());
    assert_eq!(parse("tenants:\n", "t.yaml").unwrap().tenants, [].into());
}

fn check(from: &str, to: &str, expected: &Expect) {
    assert!(FILE.contains(from), "{from}");
    expected.assert_eq(&parse(&FILE.replace(from, to), "t.yaml").unwrap_err());
}

#[test]
fn error_messages_name_the_file_the_line_and_the_field() {
    check(
        "    jobs: 10",
        "    jops: 10",
        &expect![
            "t.yaml:4: unknown key `jops` in tenants.vision; did you mean `jobs`? (known: jobs, cores, cache_bytes, priority, urls, credentials)"
        ],
    );
    check("64.5", "0", &expect!["t.yaml:5: tenants.vision.cores must be a number above 0, got 0"]);
    check(
        "2TiB",
        "2 apples",
        &expect![
            "t.yaml:6: tenants.vision.cache_bytes: invalid size `2 apples`: expected a number with a unit (KB, MB, GB, TB, KiB, MiB, GiB, TiB), such as 4GiB"
        ],
    );
    check(
        "priority: 2",
        "priority: high",
        &expect!["t.yaml:7: tenants.vision.priority must be a number above 0, got text `high`"],
    );
    check(
        "[s3://vision, /data/vision]",
        "[data]",
        &expect![
            "t.yaml:8: tenants.vision.urls: invalid URL prefix `data`: a relative path depends on the working directory: write an absolute path; write a prefix such as `s3://bucket/folder`, `https://host/` or `/data`"
        ],
    );
    check(
        "  text",
        "  two words",
        &expect![
            "t.yaml:10: tenants.two words: invalid tenant name `two words`: use at most 64 letters, digits, `.`, `_` and `-`"
        ],
    );
    check(
        "  text: {}",
        "  vision: {}",
        &expect!["t.yaml:10: key `vision` appears twice in tenants; remove one of them"],
    );
    check(
        "default",
        "defaults",
        &expect!["t.yaml:1: unknown key `defaults`; did you mean `default`? (known: default, tenants)"],
    );
}
