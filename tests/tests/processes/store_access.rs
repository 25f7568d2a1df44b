//! Named credentials, and the policy of what pipelines may read, in one process and in a cluster.

use std::path::Path;
use std::process::Command;

use feedline_tests::process::Role;
use feedline_tests::store::{KEY, SECRET, Store};
use feedline_tests::{CACHE_HOME, Call, Scratch, assert_clean, feedline};

/// Runs the binary with full logs and without credentials in its environment, and checks that no output contains a secret.
fn call(scratch: &Scratch, arguments: &[&str]) -> Call {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "120"]).arg(feedline()).args(arguments).current_dir(scratch.path());
    command.env(CACHE_HOME, scratch.cache()).env("FEEDLINE_LOG", "trace");
    for name in ["AWS_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"] {
        command.env_remove(name);
    }
    let call = Call::from(command.output().expect("the binary starts"));
    for text in [&call.stdout, &call.stderr] {
        assert!(!text.contains(SECRET), "a secret was shown");
    }
    call
}

/// Returns the sentence that a failed call prints last.
fn sentence(call: &Call, status: i32) -> &str {
    assert_eq!(call.status, status, "{}", call.stderr);
    let last = call.stderr.lines().rfind(|line| line.starts_with("feedline: "));
    last.unwrap_or_else(|| panic!("no sentence: {}", call.stderr))
}

/// A bucket with a table, on a server with credentials, and a credentials file.
struct Bucket {
    scratch: Scratch,
    _server: Store,
    credentials: String,
}

impl Bucket {
    fn new() -> Self {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.path().join("store/bucket"))
            .expect("the scratch directory is writable");
        for folder in ["table", "other"] {
            scratch.make_data(
                "table",
                &format!("store/bucket/{folder}"),
                &["--format", "jsonl", "--rows", "40"],
            );
        }
        let server = Store::serve(&scratch.path().join("store"));
        let entry = |name: &str, secret: &str| {
            format!(
                "{name}:\n  urls: [s3://bucket/table]\n  aws_endpoint: {}\n  aws_allow_http: true\n  aws_region: us-east-1\n  \
                 aws_access_key_id: {KEY}\n  aws_secret_access_key: \"{secret}\"\n",
                server.url
            )
        };
        let text = entry("mine", SECRET) + &entry("stale", &format!("{SECRET}-no-more"));
        let credentials = scratch.write("credentials.yaml", &text);
        Self { scratch, _server: server, credentials }
    }

    fn pipeline(&self, folder: &str, name: &str) -> String {
        let text = format!(
            "name: a\nsource: {{ url: \"s3://bucket/{folder}/*\", format: jsonl, credentials: {name} }}\noperators: [ batch: {{ size: 4 }} ]"
        );
        self.scratch.write(&format!("{folder}-{name}.yaml"), &text)
    }
}

/// Checks that no file in the directory contains the secret.
fn assert_untold(folder: &Path) {
    for entry in std::fs::read_dir(folder).expect("the directory is there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            assert_untold(&path);
        } else {
            let bytes = std::fs::read(&path).expect("readable");
            let found = bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
            assert!(!found, "{} holds the secret", path.display());
        }
    }
}

#[test]
fn named_credentials_open_a_store_and_are_never_disclosed() {
    let bucket = Bucket::new();
    let with = ["--credentials", &bucket.credentials];
    let run = |folder: &str, name: &str, flags: &[&str]| {
        let file = bucket.pipeline(folder, name);
        call(&bucket.scratch, &[["run", &file, "--audit", "--report", "json"].as_slice(), flags].concat())
    };
    let report = run("table", "mine", &with).report();
    assert_clean(&report);
    assert_eq!(report["rows"], 40);
    let file = bucket.pipeline("table", "mine");
    let explained =
        call(&bucket.scratch, &["explain", &file, "--seconds", "1", "--save-trace", with[0], with[1]]);
    assert_eq!(explained.status, 0, "{}", explained.stderr);
    let refused = run("table", "mine", &[]);
    assert!(sentence(&refused, 2).contains("unknown credentials `mine`"), "{}", refused.stderr);
    let refused = run("table", "mnie", &with);
    assert!(
        sentence(&refused, 2).contains("did you mean `mine`? (known: mine, stale)"),
        "{}",
        refused.stderr
    );
    let refused = run("other", "mine", &with);
    assert!(sentence(&refused, 2).contains("are not valid for `s3://bucket/other/*`"), "{}", refused.stderr);
    let refused = run("table", "stale", &with);
    assert!(sentence(&refused, 1).contains("check the credentials"), "{}", refused.stderr);
    std::fs::remove_file(&bucket.credentials).expect("written above");
    assert_untold(bucket.scratch.path());
}

#[test]
fn a_cluster_checks_credential_names_and_url_prefixes() {
    let bucket = Bucket::new();
    let data = bucket.scratch.file("coordinator");
    let prefix = ["--allow-url", "s3://bucket/table"];
    let known = ["--credentials", &bucket.credentials];
    let listen = ["--listen", "127.0.0.1:0"];
    let start = |role: &[&str], flags: &[&str]| Role::start(&[role, &listen, flags].concat(), &[]);
    let coordinator = start(&["coordinator", "--data-dir", &data], &[prefix, known].concat());
    let url = coordinator.url();
    let _worker = start(&["worker", "--coordinator", &url, "--cores", "1"], &[prefix, known].concat());
    let run = |folder: &str, name: &str| {
        let file = bucket.pipeline(folder, name);
        call(&bucket.scratch, &["run", &file, "--coordinator", &url, "--audit", "--report", "json"])
    };
    assert_clean(&run("table", "mine").report());
    let refused = run("other", "mine");
    assert!(
        sentence(&refused, 2).contains("source.url: `s3://bucket/other/*` is outside the allowed URLs"),
        "{}",
        refused.stderr
    );
    assert!(sentence(&run("table", "none"), 2).contains("known: mine, stale"));
    drop(coordinator);
    assert_untold(Path::new(&data));
}

#[test]
fn a_worker_rejects_urls_that_the_coordinator_allowed() {
    let scratch = Scratch::new();
    scratch.make_data("table", "in", &["--format", "jsonl", "--rows", "10"]);
    scratch.make_data("table", "out", &["--format", "jsonl", "--rows", "10"]);
    let shard = std::fs::read_dir(scratch.path().join("out")).expect("made above").next();
    let shard = shard.expect("there is one").expect("readable").path();
    std::os::unix::fs::symlink(&shard, scratch.path().join("in/zlink.jsonl")).expect("writable");
    let coordinator = Role::start(
        &["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &scratch.file("coordinator")],
        &[],
    );
    let (url, allowed) = (coordinator.url(), scratch.file("in"));
    let _worker = Role::start(
        &[
            "worker",
            "--listen",
            "127.0.0.1:0",
            "--coordinator",
            &url,
            "--cores",
            "1",
            "--allow-url",
            &allowed,
        ],
        &[],
    );
    for (folder, says) in
        [("out/*", "is outside the allowed URLs"), ("in/*", "contains a symbolic link to a")]
    {
        let text = format!(
            "name: a\nsource: {{ url: \"{}\", format: jsonl }}\noperators: [ batch: {{ size: 4 }} ]",
            scratch.file(folder)
        );
        let file = scratch.write("a.yaml", &text);
        let refused = call(&scratch, &["run", &file, "--coordinator", &url]);
        assert!(sentence(&refused, 1).contains(says), "{}", refused.stderr);
    }
}

#[test]
fn metadata_services_and_credentials_in_urls_are_rejected_before_any_read() {
    let scratch = Scratch::new();
    let run = |url: &str| {
        let text = format!(
            "name: a\nsource: {{ url: \"{url}\", format: text }}\noperators: [ batch: {{ size: 4 }} ]"
        );
        let file = scratch.write("a.yaml", &text);
        call(&scratch, &["run", &file])
    };
    let refused = run("http://0xa9fea9fe/latest/user-data");
    assert!(sentence(&refused, 2).contains("--allow-metadata-addresses"), "{}", refused.stderr);
    for url in [format!("https://me:{SECRET}@host/x"), format!("https://host/x?X-Amz-Signature={SECRET}")] {
        let refused = run(&url);
        let said = sentence(&refused, 2);
        assert!(said.contains("a.yaml:2: source.url: ") && said.contains("credentials: NAME"), "{said}");
    }
    let refused = call(&scratch, &["run", "a.yaml", "--allow-url", "data"]);
    assert_eq!(refused.status, 2);
    assert!(refused.stderr.contains("relative path"), "{}", refused.stderr);
}

/// A coordinator and a worker with tokens, and a table next to their keys.
struct Guarded {
    scratch: Scratch,
    coordinator: Role,
    _worker: Role,
}

impl Guarded {
    /// Starts the roles. `allow` contains the allowed directories of the coordinator and of the worker.
    fn start(allow: [&[&str]; 2]) -> Self {
        let scratch = Scratch::new();
        scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "40"]);
        assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
        scratch.write("credentials.yaml", &format!("one: {{ aws_secret_access_key: \"{SECRET}\" }}\n"));
        std::fs::create_dir(scratch.path().join("links")).expect("writable");
        let at = |name: &str| scratch.path().join(name);
        std::os::unix::fs::symlink(at("keys/worker.token"), at("links/symbolic")).expect("writable");
        std::fs::hard_link(at("keys/worker.token"), at("links/hard")).expect("writable");
        let [of_coordinator, of_worker] = allow.map(|folders| {
            let flags = folders.iter().map(|folder| ["--allow-url".to_owned(), scratch.file(folder)]);
            flags.flatten().collect::<Vec<_>>()
        });
        let start = |role: &[&str], allow: &[String]| {
            let flags = role.iter().copied().chain(["--listen", "127.0.0.1:0"]);
            Role::start(&flags.chain(allow.iter().map(String::as_str)).collect::<Vec<_>>(), &[])
        };
        let (data, secret) = (scratch.file("data"), scratch.file("keys/secret"));
        let coordinator =
            start(&["coordinator", "--data-dir", &data, "--secret-file", &secret], &of_coordinator);
        let (url, token) = (coordinator.url(), scratch.file("keys/worker.token"));
        let credentials = scratch.file("credentials.yaml");
        let worker = ["worker", "--coordinator", &url, "--cores", "1", "--token-file", &token];
        let worker = start(&[&worker[..], &["--credentials", &credentials]].concat(), &of_worker);
        Self { scratch, coordinator, _worker: worker }
    }

    /// Runs a job that reads this path, with a token that may submit and consume jobs.
    fn read(&self, path: &str, format: &str) -> Call {
        let text = format!(
            "name: a\nsource: {{ url: \"{}\", format: {format} }}\noperators: [ batch: {{ size: 4 }} ]",
            self.scratch.file(path)
        );
        let file = self.scratch.write("a.yaml", &text);
        let (url, token) = (self.coordinator.url(), self.scratch.file("keys/client.token"));
        let run =
            ["run", &file, "--coordinator", &url, "--token-file", &token, "--audit", "--report", "json"];
        call(&self.scratch, &run)
    }
}

#[test]
fn jobs_read_only_local_files_within_allowed_prefixes() {
    let nothing = Guarded::start([&[], &[]]);
    for path in ["keys/worker.token", "credentials.yaml", "keys/*", "table/*"] {
        let refused = nothing.read(path, "text");
        let said = sentence(&refused, 2);
        assert!(said.contains("is a local file") && said.contains("with `--allow-url`"), "{said}");
    }
    drop(nothing);
    // The worker checks the path too.
    let careless = Guarded::start([&["."], &[]]);
    let refused = careless.read("credentials.yaml", "text");
    assert!(sentence(&refused, 1).contains("is a local file"), "{}", refused.stderr);
}

#[test]
fn no_path_reads_the_keys_of_roles() {
    // The most permissive setting.
    let all = Guarded::start([&["."], &["."]]);
    assert_clean(&all.read("table/*", "jsonl").report());
    for (path, of) in [
        ("keys/secret", "keys/secret"),
        ("keys/../keys/./secret", "keys/secret"),
        ("keys/", "keys/secret"),
        ("data/", "data/records.log"),
        ("data/*", "data/records.log"),
        ("data/index/*", "data/index/*.index"),
    ] {
        let refused = all.read(path, "text");
        let said = sentence(&refused, 2);
        let own = all.scratch.file(of);
        assert!(said.contains("the protected file") && said.contains(&own), "{path}: {said}");
    }
    for path in [
        "keys/worker.token",
        "keys/../keys/worker.token",
        "keys/w*.token",
        "credentials.yaml",
        "links/symbolic",
        "links/hard",
        "links/*",
    ] {
        let refused = all.read(path, "text");
        assert!(sentence(&refused, 1).contains("the protected file"), "{path}: {}", refused.stderr);
    }
}

#[test]
fn data_in_the_folder_of_a_roles_files_is_readable() {
    let scratch = Scratch::new();
    scratch.make_data("table", "sets", &["--format", "jsonl", "--rows", "40"]);
    let here = scratch.file(".");
    let flags = ["--data-dir", &here, "--index-dir", &here, "--cache-dir", &here];
    let up = Role::start(&[&["up", "--listen", "127.0.0.1:0", "--cores", "1"][..], &flags].concat(), &[]);
    let read = |path: &str| {
        let text = format!(
            "name: a\nsource: {{ url: \"{}\", format: jsonl }}\noperators: [ batch: {{ size: 4 }} ]",
            scratch.file(path)
        );
        let file = scratch.write("a.yaml", &text);
        call(&scratch, &["run", &file, "--coordinator", &up.url(), "--audit", "--report", "json"])
    };
    for path in ["sets/*", "sets/", "sets/*.jsonl"] {
        assert_clean(&read(path).report());
    }
    for (path, of) in
        [("records.log", "records.log"), ("*", "records.log"), ("rows/", "part-*"), ("*.index", "*.index")]
    {
        let refused = read(path);
        let said = sentence(&refused, 2);
        assert!(said.contains("the protected file") && said.contains(of), "{path}: {said}");
    }
}
