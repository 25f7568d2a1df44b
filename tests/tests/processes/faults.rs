//! A short `make chaos`.

use std::time::Duration;

use feedline_tests::chaos::{self, Fault};

#[test]
fn a_job_on_three_coordinators_survives_killed_roles_and_cut_links() {
    let Some(outcome) = chaos::run(Duration::from_secs(30), 1, None) else { return };
    eprintln!("{outcome}");
    assert_eq!(outcome.defects(), Vec::<String>::new(), "{outcome}");
    assert!(outcome.faults.values().sum::<u32>() >= 5, "{outcome}");
    assert!(outcome.faults.contains_key(&Fault::KillLeader), "{outcome}");
}
