//! The probes of the roles, as an orchestrator such as Kubernetes calls them.

use feedline_tests::http::{free_ports, get};
use feedline_tests::process::Role;
use feedline_tests::{Scratch, wait_for};

/// Returns the status code of a probe.
fn probe(role: &Role, path: &str) -> u16 {
    let answer = get(role.health(), path);
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("the answer starts with a status line")
}

#[test]
fn a_coordinator_that_waits_for_its_peers_has_started() {
    let scratch = Scratch::new();
    let addresses = free_ports(3);
    let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let peers = urls.join(",");
    let start = |place: usize| {
        let data = scratch.file(&format!("data-{place}"));
        let arguments =
            ["coordinator", "--listen", &addresses[place], "--data-dir", &data, "--peers", &peers];
        let http = ["--health", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        Role::start(&[&arguments[..], &http].concat(), &[])
    };
    let first = start(0);
    assert_eq!(["/healthz", "/startupz", "/readyz"].map(|path| probe(&first, path)), [200, 200, 503]);
    assert!(get(first.http(), "/startupz").starts_with("HTTP/1.1 200"), "--http answers the same probes");
    let others = [start(1), start(2)];
    for role in [&first, &others[0], &others[1]] {
        wait_for("a leader", || (probe(role, "/readyz") == 200).then_some(()));
    }
    // Two of three coordinators are lost, so the last one has no leader: a restart would not help.
    drop(others);
    wait_for("the loss of the leader", || (probe(&first, "/readyz") == 503).then_some(()));
    assert_eq!(["/healthz", "/startupz"].map(|path| probe(&first, path)), [200, 200]);
}

#[test]
fn probes_of_a_role_with_tls_need_no_certificate_and_no_insecure() {
    let scratch = Scratch::new();
    assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
    let files = ["ca.pem", "role.pem", "role-key.pem", "secret", "worker.token"];
    let [ca, cert, key, secret, token] = files.map(|name| scratch.file(&format!("keys/{name}")));
    let tls = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let data = scratch.file("data");
    let health = ["--http", "127.0.0.1:0", "--health", "0.0.0.0:0"];
    let coordinator =
        ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data, "--secret-file", &secret];
    let coordinator = Role::start(&[&coordinator[..], &health, &tls].concat(), &[]);
    let url = coordinator.secure_url();
    let worker = ["worker", "--listen", "127.0.0.1:0", "--coordinator", &url, "--token-file", &token];
    let worker = Role::start(&[&worker[..], &health, &tls].concat(), &[]);
    let up = ["up", "--listen", "127.0.0.1:0", "--workers", "1", "--secret-file", &secret];
    let up = Role::start(&[&up[..], &health, &tls].concat(), &[]);
    for role in [&coordinator, &worker, &up] {
        wait_for("a ready role", || (probe(role, "/readyz") == 200).then_some(()));
        assert_eq!(["/healthz", "/startupz"].map(|path| probe(role, path)), [200, 200]);
        for path in ["/metrics", "/"] {
            assert_eq!(probe(role, path), 404, "{path}");
        }
    }
    drop(coordinator);
    wait_for("the loss of the coordinator", || (probe(&worker, "/readyz") == 503).then_some(()));
    assert_eq!(["/healthz", "/startupz"].map(|path| probe(&worker, path)), [200, 200]);
}

#[test]
fn an_unusable_address_for_probes_is_rejected() {
    let scratch = Scratch::new();
    let data = scratch.file("data");
    let role = Role::start(&["up", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0"], &[]);
    for (address, status, part) in [
        ("7180", 2, "invalid address `7180`: expected --health HOST:PORT"),
        (role.health(), 1, "the address is in use; stop the other process or choose another --health"),
    ] {
        let coordinator =
            ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data, "--health", address];
        let refused = scratch.call(&coordinator);
        assert_eq!((refused.status, refused.stderr.lines().count()), (status, 1), "{}", refused.stderr);
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
}
