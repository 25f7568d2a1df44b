//! The binary as a user calls it. Also makes every build of the tests build the binary.

use std::process::Command;

#[test]
fn the_binary_tells_its_version_and_refuses_what_it_does_not_know() {
    let binary = env!("CARGO_BIN_EXE_feedline");
    let output = Command::new(binary).arg("--version").output().expect("the binary starts");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        concat!("feedline ", env!("CARGO_PKG_VERSION"))
    );
    let output = Command::new(binary).arg("rum").output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("run"));
}
