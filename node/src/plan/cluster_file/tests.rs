//! Tests of parsing a cluster file, and of the error message for each mistake.

use expect_test::{Expect, expect};

use super::*;

/// A file with two types of workers; no worker of the second type is present.
pub(in crate::plan) const FILE: &str = "
worker_types:
  - { name: general, cores: 16, memory: 64GiB, disk: 400GB, count: 4, max: 20 }
  - { name: fast, cores: 8, memory: 32000000000, nic_bytes_per_s: 1.25GB, speed: 2, core_hour: 0.06, count: 0, max: 4 }
store: { bytes_per_s: 5GB }
settings: { prices: { core_hour: 0.05 } }
";

/// Parses the file with `suffix` appended.
pub(in crate::plan) fn parsed(suffix: &str) -> ClusterFile {
    ClusterFile::parse(&format!("{FILE}{suffix}"), "c.yaml").unwrap()
}

#[test]
fn a_file_is_converted_to_a_problem() {
    let problem = parsed("").problem();
    problem.check().unwrap();
    assert_eq!(problem.worker_counts(), [4, 0]);
    assert_eq!(problem.worker_types[0].memory_bytes, 64.0 * f64::from(1 << 30));
    assert_eq!(problem.worker_types[0].max_workers, 20);
    assert_eq!(problem.worker_types[1].nic_bytes_per_s, 1.25e9);
    assert_eq!((problem.store_bytes_per_s, problem.store_cache_bytes), (vec![5e9], 0.0));
    assert_eq!(problem.settings.prices.core_hour, 0.05);
    assert_eq!(problem.settings.headroom, PlannerSettings::default().headroom);
}

#[test]
fn jobs_override_values_of_traces() {
    let jobs = parsed(
        "jobs: { a: { weight: 2, demand_rows_per_s: 5000 }, b: { cache: never }, c: { cache: { after: burn, tier: disk } } }",
    )
    .jobs;
    assert_eq!((jobs["a"].weight, jobs["a"].demand_rows_per_s), (2.0, Some(5000.0)));
    assert_eq!(jobs["a"].cache, CacheOverride::Free);
    assert_eq!((jobs["a"].store_is_local, jobs["a"].consumers_share), (None, 0.0));
    assert_eq!(jobs["b"], JobOverride { cache: CacheOverride::Never, ..JobOverride::default() });
    assert!(matches!(&jobs["c"].cache, CacheOverride::Pinned(pinned) if pinned.after == "burn"));
}

#[test]
fn tenants_have_quotas() {
    let tenants = "tenants: { vision: { cores: 20, cache_bytes: 1TB, priority: 2 }, text: {} }\njobs: { a: { tenant: vision } }";
    let file = parsed(tenants);
    let problem = file.problem();
    problem.check().unwrap();
    let [text, vision] = problem.tenants.as_slice() else { panic!("two tenants") };
    assert_eq!((text.name.as_str(), text.cores, text.cache_bytes), ("text", None, None));
    assert_eq!((vision.name.as_str(), vision.cores, vision.cache_bytes), ("vision", Some(20.0), Some(1e12)));
    assert_eq!(file.jobs["a"].tenant.as_deref(), Some("vision"));
    let unknown =
        ClusterFile::parse(&format!("{FILE}jobs: {{ a: {{ tenant: sound }} }}"), "c.yaml").unwrap_err();
    assert_eq!(
        unknown,
        "c.yaml: jobs.a.tenant: unknown tenant `sound`: add it to tenants, or remove this key"
    );
}

fn check(from: &str, to: &str, expected: &Expect) {
    assert!(FILE.contains(from), "{from}");
    expected.assert_eq(&ClusterFile::parse(&FILE.replace(from, to), "c.yaml").unwrap_err());
}

#[test]
fn error_messages_name_the_file_and_the_field() {
    check(
        "cores: 16",
        "core: 16",
        &expect![
            "c.yaml:3: unknown key `core` in worker_types[0]; did you mean `cores`? (known: name, cores, memory, disk, nic_bytes_per_s, memory_read_bytes_per_s, disk_read_bytes_per_s, speed, core_hour, count, max)"
        ],
    );
    check(
        "64GiB",
        "64 apples",
        &expect![
            "c.yaml:3: worker_types[0].memory: invalid size `64 apples`: expected a number with a unit (KB, MB, GB, TB, KiB, MiB, GiB, TiB), such as 4GiB"
        ],
    );
    check("64GiB", "-1", &expect!["c.yaml:3: worker_types[0].memory must be a size such as 64GiB, got -1"]);
    check("cores: 16, ", "", &expect!["c.yaml:3: worker_types[0] has no key `cores`; add the key"]);
    check(
        "cores: 16",
        "cores: 0",
        &expect!["c.yaml: worker_types[0].cores: invalid number 0: expected a number above 0"],
    );
    check("name: fast", "name: general", &expect!["c.yaml: worker_types[1].name: duplicate name `general`"]);
    check("max: 20", "max: 2", &expect!["c.yaml: worker_types[0].max: 2 is less than count, 4: raise max"]);
    check(
        "speed: 2",
        "speed: 0",
        &expect![
            "c.yaml: worker_types[1].speed: invalid speed 0: expected a number above 0; the traced machine has 1"
        ],
    );
    check(
        "store: {",
        "store: { rooms: 1,",
        &expect!["c.yaml:5: unknown key `rooms` in store; known: bytes_per_s, cache"],
    );
    check(
        "core_hour: 0.05",
        "core_hours: 0.05",
        &expect![
            "c.yaml:6: unknown key `core_hours` in settings.prices; did you mean `core_hour`? (known: core_hour, memory_gb_hour, disk_gb_hour, store_gb_hour)"
        ],
    );
    check(
        "settings",
        "jobs: { a: { cache: always } }\nsettings",
        &expect![
            "c.yaml:6: jobs.a.cache must be `free`, `never` or {after: OPERATOR, tier: memory | disk | store}, got text `always`"
        ],
    );
    check(
        "settings",
        "jobs: { a: { cache: { after: burn } } }\nsettings",
        &expect!["c.yaml:6: jobs.a.cache has no key `tier`; add the key"],
    );
    check(
        "settings",
        "jobs: { a: { weight: 0 } }\nsettings",
        &expect!["c.yaml: jobs.a.weight: invalid weight 0: expected a number above 0"],
    );
    check(
        "settings",
        "jobs: { a: { consumers_share: 1.5 } }\nsettings",
        &expect!["c.yaml: jobs.a.consumers_share: invalid fraction 1.5: expected a number from 0 to 1"],
    );
    check(
        "settings",
        "store: {}\nsettings",
        &expect!["c.yaml:6: key `store` appears twice; remove one of them"],
    );
}

#[test]
fn a_file_without_workers_is_rejected() {
    let error_of = |text: &str| ClusterFile::parse(text, "c.yaml").unwrap_err();
    expect!["c.yaml: worker_types is empty: add a type with name, cores, memory and count"]
        .assert_eq(&error_of("worker_types: []"));
    expect!["c.yaml: the file is empty; write a mapping with the required keys"].assert_eq(&error_of(""));
}
