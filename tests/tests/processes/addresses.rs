//! The addresses of workers, and the names in their certificates, as in a pod.

use std::sync::Arc;

use feedline_access::{Credentials, Tls, TlsFiles};
use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::{ServiceErrorKind, WorkerAddress};
use feedline_proto::local::Transport;
use feedline_proto::{FetchOpen, FetchRequest, grpc};
use feedline_tests::http::get;
use feedline_tests::process::Role;
use feedline_tests::{Scratch, assert_clean, wait_for};
use futures::{StreamExt, stream};

/// The only name in the certificate of the workers.
const NAME: &str = "workers.feedline";

/// Makes a dataset, and returns a pipeline file.
fn table(scratch: &Scratch) -> String {
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2000", "--shards", "2"]);
    let text = format!(
        "name: table\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 16 }} ]",
        scratch.file("table")
    );
    scratch.write("table.yaml", &text)
}

/// Makes keys, and a certificate `workers` with the only name [`NAME`].
fn make_keys(scratch: &Scratch) {
    assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
    let made = scratch.call(&["keys", "cert", "keys", "--name", "workers", "--host", NAME]);
    assert_eq!(made.status, 0, "{}", made.stderr);
}

/// Returns the flags of a process with this certificate.
fn tls_flags(scratch: &Scratch, certificate: &str) -> Vec<String> {
    let file = |name: String| scratch.file(&format!("keys/{name}"));
    let files = [
        ("--tls-ca", file("ca.pem".to_owned())),
        ("--tls-cert", file(format!("{certificate}.pem"))),
        ("--tls-key", file(format!("{certificate}-key.pem"))),
    ];
    files.into_iter().flat_map(|(flag, file)| [flag.to_owned(), file]).collect()
}

fn texts(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

#[test]
fn one_certificate_name_suffices_for_all_workers() {
    let scratch = Scratch::new();
    let file = table(&scratch);
    make_keys(&scratch);
    let [role, workers, client] = ["role", "workers", "client"].map(|name| tls_flags(&scratch, name));
    let data = scratch.file("data");
    let coordinator = ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data];
    let coordinator = Role::start(&[&coordinator[..], &texts(&role)[..]].concat(), &[]);
    let url = coordinator.secure_url();
    let start = || {
        let worker = ["worker", "--coordinator", &url, "--listen", "127.0.0.1:0", "--tls-name", NAME];
        Role::start(&[&worker[..], &texts(&workers)[..]].concat(), &[])
    };
    let started = [start(), start()];
    for transport in ["tcp", "auto"] {
        let run = ["--coordinator", &url, "--transport", transport];
        assert_clean(&scratch.run(&file, &[&run[..], &texts(&client)[..]].concat()));
    }
    // A client that checks the host rejects the workers.
    let error = error_without_name(&scratch, &started[0]);
    for part in ["not valid for name \"127.0.0.1\"", NAME, "start the worker with --tls-name"] {
        assert!(error.contains(part), "{error}");
    }
}

/// Returns the error of a fetch by a client that checks the host.
fn error_without_name(scratch: &Scratch, worker: &Role) -> String {
    let file = |name: &str| Some(scratch.file(&format!("keys/{name}")).into());
    let files = TlsFiles {
        ca: file("ca.pem"),
        cert: file("client.pem"),
        key: file("client-key.pem"),
        allows_unverified_clients: false,
    };
    let tls = Some(Arc::new(Tls::load(files).expect("the files were made")));
    let credentials = Credentials { tls, token: None };
    let address = WorkerAddress::new(worker.secure_url());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let client = grpc::connect_worker_over(&address, &credentials, Transport::Tcp, |_, _| {});
        let split = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
        let open = FetchOpen {
            job: JobId(1),
            split,
            start_offset: 0,
            credit_bytes: 1 << 20,
            ticket: String::new(),
            cached_features: Vec::new(),
        };
        let requests = stream::once(async { FetchRequest::Open(open) }).boxed();
        let error = client.expect("the address is valid").fetch(requests).await.map(|_| ());
        let error = error.expect_err("the certificate does not contain the host");
        assert_eq!(error.kind, ServiceErrorKind::Unavailable, "{error}");
        error.message
    })
}

#[test]
fn a_worker_with_an_unusable_certificate_name_does_not_start() {
    let scratch = Scratch::new();
    make_keys(&scratch);
    let workers = tls_flags(&scratch, "workers");
    let listen = ["worker", "--listen", "127.0.0.1:0", "--tls-name"];
    for (name, tls, part) in [
        (
            "other.feedline",
            &workers[..],
            "workers.pem does not contain the name `other.feedline`, only workers.feedline; issue a certificate",
        ),
        (
            "*.feedline",
            &workers[..],
            "invalid certificate name `*.feedline`: expected a DNS name or an address",
        ),
        (NAME, &[][..], "--tls-name has no effect with the address http://127.0.0.1:"),
    ] {
        let refused = scratch.call(&[&listen[..], &[name], &texts(tls)[..]].concat());
        assert_eq!(refused.status, 2, "{}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
}

#[test]
fn a_job_runs_over_ipv6_and_on_dual_stack() {
    let scratch = Scratch::new();
    let file = table(&scratch);
    let data = scratch.file("data");
    let coordinator =
        Role::start(&["coordinator", "--listen", "[::]:0", "--data-dir", &data, "--insecure"], &[]);
    let port = coordinator.address.rsplit_once(':').expect("an address has a port").1;
    let urls = ["[::1]", "127.0.0.1"].map(|host| format!("http://{host}:{port}"));
    // The digest does not depend on the addresses.
    let digest = scratch.run(&file, &[])["digest"].clone();
    for (listen, advertise) in [("[::1]:0", None), ("[::]:0", Some("::1")), ("[::]:0", Some("127.0.0.1"))] {
        let mut worker = vec!["worker", "--listen", listen, "--coordinator", &urls[0], "--insecure"];
        worker.extend(advertise.map(|host| ["--advertise-host", host]).into_iter().flatten());
        let worker = Role::start(&worker, &[]);
        for url in &urls {
            let report = scratch.run(&file, &["--coordinator", url, "--transport", "tcp"]);
            assert_clean(&report);
            assert_eq!(report["digest"], digest, "{listen} {advertise:?}");
        }
        let host = if advertise == Some("127.0.0.1") { "127.0.0.1" } else { "[::1]" };
        let port = worker.address.rsplit_once(':').expect("an address has a port").1;
        wait_for("the address of the worker", || {
            let top = scratch.call(&["top", "--once", "--format", "json", "--coordinator", &urls[0]]);
            top.stdout.contains(&format!("\"http://{host}:{port}\"")).then_some(())
        });
        assert_eq!(worker.terminate(), 0);
    }
}

#[test]
fn a_job_runs_over_ipv6_with_tls() {
    let scratch = Scratch::new();
    let file = table(&scratch);
    make_keys(&scratch);
    let [role, client] = ["role", "client"].map(|name| tls_flags(&scratch, name));
    let data = scratch.file("data");
    let coordinator = ["coordinator", "--listen", "[::1]:0", "--data-dir", &data];
    let coordinator = Role::start(&[&coordinator[..], &texts(&role)[..]].concat(), &[]);
    let url = coordinator.secure_url();
    let worker = ["worker", "--listen", "[::1]:0", "--coordinator", &url];
    let _worker = Role::start(&[&worker[..], &texts(&role)[..]].concat(), &[]);
    let run = ["--coordinator", &url, "--transport", "tcp"];
    assert_clean(&scratch.run(&file, &[&run[..], &texts(&client)[..]].concat()));
}

#[test]
fn all_roles_of_one_process_run_over_ipv6() {
    let scratch = Scratch::new();
    let file = table(&scratch);
    for scaled in [["--workers", "2"], ["--autoscale", "1..2"]] {
        let up = ["up", "--listen", "[::]:0", "--advertise", "::1", "--health", "[::1]:0", "--insecure"];
        let up = Role::start(&[&up[..], &scaled].concat(), &[]);
        let port = up.address.rsplit_once(':').expect("an address has a port").1;
        let url = format!("http://[::1]:{port}");
        assert_clean(&scratch.run(&file, &["--coordinator", &url, "--transport", "tcp"]));
        assert!(up.health().starts_with("[::1]:"), "{}", up.health());
        assert!(get(up.health(), "/readyz").starts_with("HTTP/1.1 200"));
    }
}

#[test]
fn an_invalid_host_is_rejected() {
    let scratch = Scratch::new();
    for (host, part) in [
        ("10.0.0.7:7071", "expected a name or an address without scheme and port"),
        ("http://worker-0", "expected a name or an address without scheme and port"),
        ("::", "consumers cannot connect to it"),
        ("", "invalid host ``"),
    ] {
        let flag = format!("--advertise-host={host}");
        let refused = scratch.call(&["worker", "--listen", "127.0.0.1:0", &flag]);
        assert!(refused.status == 2 && refused.stderr.contains(part), "{}", refused.stderr);
    }
    let unknown = scratch.call(&["worker", "--listen", "[::]:0", "--insecure"]);
    assert!(
        unknown.status == 2 && unknown.stderr.contains("pass --advertise-host HOST"),
        "{}",
        unknown.stderr
    );
}
