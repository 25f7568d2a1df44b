//! Tokens and the secrets that sign them: their expiry, their files, and the rotation of a secret.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use feedline_access::token::{Scope, Tokens};
use feedline_access::{Secret, now_s};
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::authenticator::{Authenticator, Authenticators};
use feedline_proto::grpc;
use feedline_tests::process::Role;
use feedline_tests::{Call, Scratch, wait_for};

use super::Keys;

/// Creates a token with these flags, and returns the call.
fn make_token(scratch: &Scratch, secret: &str, flags: &[&str]) -> Call {
    let mut arguments = vec!["keys", "token", "--secret-file", secret];
    arguments.extend(flags);
    scratch.call(&arguments)
}

#[test]
fn tokens_expire_and_a_tenants_token_cannot_administer_the_cluster() {
    let scratch = Scratch::new();
    let made = scratch.call(&["keys", "new", "keys"]);
    assert!(made.stdout.contains("the tokens are valid for 365 days"), "{}", made.stdout);
    let aloud = scratch.call(&["keys", "new", "endless", "--expires", "never"]);
    assert!(aloud.stdout.contains("the tokens are valid FOREVER"), "{}", aloud.stdout);
    let file = scratch.file("keys/secret");
    let secret = Secret::parse(&fs::read_to_string(&file).unwrap()).unwrap();
    let read = |name: &str| fs::read_to_string(scratch.file(&format!("keys/{name}.token"))).unwrap();
    let made = make_token(&scratch, &file, &["--scope", "observe", "--holder", "ci"]);
    assert_eq!(made.stderr, "feedline: the token of `ci` is valid for 365 days\n");
    let year_s = 365 * 86_400;
    for token in [made.stdout, read("worker"), read("client"), read("admin")] {
        let tokens = Tokens::new(&secret);
        assert!(tokens.check(&token, now_s() + year_s - 3_600).is_ok());
        assert!(tokens.check(&token, now_s() + year_s).unwrap_err().contains("expired"));
    }
    let endless = make_token(&scratch, &file, &["--scope", "observe", "--expires", "never"]);
    assert!(endless.stderr.contains("valid FOREVER"), "{}", endless.stderr);
    assert!(Tokens::new(&secret).check(&endless.stdout, u64::MAX).is_ok());
    for scope in ["work", "admin", "submit,admin"] {
        let refused = make_token(&scratch, &file, &["--scope", scope, "--tenant", "vision"]);
        assert_eq!((refused.status, refused.stdout.as_str()), (2, ""), "{scope}");
        assert!(refused.stderr.contains("which applies to the whole cluster"), "{}", refused.stderr);
    }
    for scope in ["submit", "consume", "observe"] {
        assert_eq!(
            make_token(&scratch, &file, &["--scope", scope, "--tenant", "vision"]).status,
            0,
            "{scope}"
        );
    }
}

#[test]
fn readable_secret_files_cause_a_warning() {
    let scratch = Scratch::new();
    assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
    let keys = Keys(scratch.file("keys"));
    let secret = keys.file("secret");
    let quiet = make_token(&scratch, &secret, &["--scope", "observe"]);
    assert!(!quiet.stderr.contains("other users can access"), "{}", quiet.stderr);
    for name in ["secret", "client.token", "client-key.pem"] {
        fs::set_permissions(keys.file(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let loud = make_token(&scratch, &secret, &["--scope", "observe"]);
    assert!(loud.status == 0 && loud.stderr.contains("other users can access"), "{}", loud.stderr);
    // No process listens there; the command reads the files first.
    let mut arguments = vec!["job", "list", "--coordinator", "https://127.0.0.1:1"];
    let client = keys.client();
    arguments.extend(client.iter().map(String::as_str));
    let stderr = scratch.call(&arguments).stderr;
    for what in ["client.token, which contains a token", "client-key.pem, which contains a private key"] {
        assert!(stderr.contains(what), "{stderr}");
    }
}

/// Whether a coordinator with this secret file accepts a token that another secret file signed.
fn serves(scratch: &Scratch, url: &str, secret: &str) -> bool {
    let token = scratch.write("some.token", &make_token(scratch, secret, &["--scope", "observe"]).stdout);
    scratch.call(&["job", "list", "--coordinator", url, "--token-file", &token]).status == 0
}

#[test]
fn a_secret_is_replaced_while_tokens_of_both_are_valid() {
    let scratch = Scratch::new();
    let make = |name: &str| scratch.write(name, &scratch.call(&["keys", "secret"]).stdout);
    let [old, new, other] = ["old", "new", "other"].map(make);
    let text = |file: &str| fs::read_to_string(file).unwrap();
    // The steps of docs/security.md, and the tokens that each accepts.
    for (step, secrets, lets_in) in [
        ("before", text(&old), [true, false]),
        ("the new one is good", text(&old) + &text(&new), [true, true]),
        ("the new one signs", text(&new) + &text(&old), [true, true]),
        ("after", text(&new), [false, true]),
    ] {
        let (file, data) = (scratch.write("secret", &secrets), scratch.file(step));
        let arguments =
            ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data, "--secret-file", &file];
        let coordinator = Role::start(&arguments, &[]);
        let url = coordinator.url();
        assert_eq!([&old, &new].map(|secret| serves(&scratch, &url, secret)), lets_in, "{step}");
        assert!(!serves(&scratch, &url, &other), "{step}");
        // The first secret of the file signs.
        let signs = if step == "before" || step == "the new one is good" { &old } else { &new };
        let made = make_token(&scratch, &file, &["--scope", "observe"]).stdout;
        assert!(Tokens::new(&Secret::parse(&text(signs)).unwrap()).check(&made, now_s()).is_ok(), "{step}");
    }
}

#[test]
fn a_running_coordinator_accepts_a_new_secret_and_tokens_of_the_previous_secret() {
    let scratch = Scratch::new();
    let make = |name: &str| scratch.write(name, &scratch.call(&["keys", "secret"]).stdout);
    let [old, new, other] = ["old", "new", "other"].map(make);
    let (file, data) = (scratch.write("secret", &fs::read_to_string(&old).unwrap()), scratch.file("data"));
    let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data, "--secret-file", &file];
    let coordinator = Role::start(&arguments, &[]);
    let url = coordinator.url();
    assert!(serves(&scratch, &url, &old) && !serves(&scratch, &url, &new));
    let replace = |text: &str| fs::rename(scratch.write("next", text), &file).unwrap();
    replace(&fs::read_to_string(&new).unwrap());
    wait_for("the new secret", || serves(&scratch, &url, &new).then_some(()));
    assert!(serves(&scratch, &url, &old) && !serves(&scratch, &url, &other));
    // After an invalid file, the next valid file is loaded.
    replace("not a secret");
    replace(&fs::read_to_string(&other).unwrap());
    wait_for("the other secret", || serves(&scratch, &url, &other).then_some(()));
    assert!([&old, &new].iter().all(|secret| serves(&scratch, &url, secret)));
}

/// Rejects all clients and records their tokens.
#[derive(Default)]
struct Spy(Mutex<Vec<String>>);

impl<S: ?Sized> Authenticator<S> for Spy {
    fn authenticate(&self, token: Option<&str>) -> Result<Arc<S>, ServiceError> {
        self.0.lock().expect("nobody panics with it").push(token.unwrap_or_default().to_owned());
        Err(ServiceError::new(ServiceErrorKind::Denied, "all callers are denied"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_member_receives_only_a_short_lived_token() {
    let scratch = Scratch::new();
    assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
    let keys = Keys(scratch.file("keys"));
    let (secret, data, admin) = (keys.file("secret"), scratch.file("data"), keys.file("admin.token"));
    let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data, "--secret-file", &secret];
    let coordinator = Role::start(&arguments, &[]);
    let spy = Arc::new(Spy::default());
    let doors = Authenticators { coordinator: spy.clone(), peer: spy.clone() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(grpc::serve(listener, grpc::member_routes(doors), std::future::pending()));
    let url = coordinator.url();
    let refused = scratch.call(&["members", "add", &place, "--coordinator", &url, "--token-file", &admin]);
    assert!(refused.stderr.contains("all callers are denied"), "{}", refused.stderr);
    server.abort();
    let shown = spy.0.lock().unwrap().first().cloned().expect("it was asked who it is");
    let tokens = Tokens::new(&Secret::parse(&fs::read_to_string(&secret).unwrap()).unwrap());
    let claims = tokens.check(&shown, now_s()).unwrap();
    assert_eq!(claims.scopes, BTreeSet::from([Scope::Coordinate]));
    assert!(tokens.check(&shown, now_s() + 600).unwrap_err().contains("expired"));
}
