//! Tests of the keys of a cluster against an HTTP server with Secrets.

mod secret_api;

use feedline_access::{Scope, certificate_contains_host, certificate_expiry_s, now_s};
use http::Method;

use self::secret_api::SecretApi;
use super::*;

const KEYS: &str = "ml/demo-keys";
const AUTHORITY: &str = "ml/demo-ca";
const DAY_S: u64 = 86_400;

fn settings(source: KeySource) -> ClusterKeySettings {
    ClusterKeySettings {
        namespace: "ml".to_owned(),
        secret: "demo-keys".to_owned(),
        authority_secret: "demo-ca".to_owned(),
        source,
        hosts: vec!["demo.ml.svc".to_owned()],
        days: 90,
        token_lifetime_s: Some(90 * DAY_S),
        labels: [("app.kubernetes.io/instance".to_owned(), "demo".to_owned())].into(),
        copies: None,
    }
}

fn with_copies(settings: ClusterKeySettings, namespaces: &[&str]) -> ClusterKeySettings {
    let copies = ClientCopies {
        namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
        name: "feedline-client".to_owned(),
        scopes: [Scope::Consume].into(),
        tenant: Some("vision".to_owned()),
        certificate_secret: None,
    };
    ClusterKeySettings { copies: Some(copies), ..settings }
}

async fn apply_at(api: &SecretApi, settings: &ClusterKeySettings, now_s: u64) -> Result<Vec<String>, String> {
    let mut report = Vec::new();
    apply_cluster_keys(&api.client, settings, now_s, &mut report).await.map(|()| report)
}

async fn apply(api: &SecretApi, settings: &ClusterKeySettings) -> Result<Vec<String>, String> {
    apply_at(api, settings, now_s()).await
}

/// The files of the Secret with the keys.
fn all_files(api: &SecretApi) -> Vec<String> {
    settings(KeySource::All).required_files().iter().map(|file| api.file(KEYS, file)).collect()
}

fn claims_of(
    api: &SecretApi,
    secret: &str,
    file: &str,
    now_s: u64,
) -> Result<feedline_access::Claims, String> {
    Tokens::new(&Secret::parse(&api.file(KEYS, SECRET_FILE)).unwrap()).check(&api.file(secret, file), now_s)
}

#[tokio::test]
async fn missing_keys_are_created_once() {
    let api = SecretApi::start().await;
    let settings = settings(KeySource::All);
    let report = apply(&api, &settings).await.unwrap();
    assert_eq!(api.take_writes(), [format!("POST {AUTHORITY}"), format!("POST {KEYS}")]);
    assert!(
        report[1].starts_with("created the Secret ml/demo-keys with certificates that are valid for 90 days")
    );
    assert_eq!(api.files(AUTHORITY), ["ca-key.pem"], "pods do not mount the key of the authority");
    assert_eq!(api.files(KEYS).len(), 9);
    assert!(certificate_contains_host(&api.file(KEYS, "role.pem"), "demo.ml.svc"));
    let claims = claims_of(&api, KEYS, "worker.token", now_s()).unwrap();
    assert!(claims.has_any_scope(&[Scope::Work]) && claims.expires_s.is_some());
    let metadata = api.metadata(KEYS);
    assert_eq!(metadata["labels"]["app.kubernetes.io/instance"], "demo");
    assert_eq!(metadata["labels"]["app.kubernetes.io/managed-by"], "feedline-keys");
    assert_eq!(metadata["annotations"]["helm.sh/resource-policy"], "keep");
    let files = all_files(&api);
    assert_eq!(apply(&api, &settings).await.unwrap(), ["the Secret ml/demo-keys needs no change"]);
    assert_eq!((api.take_writes(), all_files(&api)), (Vec::new(), files));
}

#[tokio::test]
async fn of_two_installations_at_once_both_use_the_first_keys() {
    let api = SecretApi::start().await;
    let settings = settings(KeySource::All);
    let other = SecretApi::start().await;
    apply(&other, &settings).await.unwrap();
    let copied: Vec<(&str, String)> =
        settings.required_files().into_iter().map(|file| (file, other.file(KEYS, file))).collect();
    let key = other.file(AUTHORITY, AUTHORITY_KEY);
    api.with(|state| {
        state.interfere(Method::POST, move |state| {
            state.insert(AUTHORITY, &[(AUTHORITY_KEY, key)]);
            state.interfere(Method::POST, move |state| state.insert(KEYS, &copied));
        });
    });
    let report = apply(&api, &settings).await.unwrap();
    assert_eq!(
        report,
        [
            "another process created the Secret ml/demo-keys at the same time",
            "the Secret ml/demo-keys needs no change"
        ]
    );
    assert_eq!(all_files(&api), all_files(&other));
    assert_eq!(api.take_writes(), [format!("POST {AUTHORITY}"), format!("POST {KEYS}")]);
}

#[tokio::test]
async fn certificates_are_renewed_under_the_same_authority_and_secret() {
    let api = SecretApi::start().await;
    let short = ClusterKeySettings { days: 10, ..settings(KeySource::All) };
    apply(&api, &short).await.unwrap();
    let (authority, secret, worker) =
        (api.file(KEYS, "ca.pem"), api.file(KEYS, SECRET_FILE), api.file(KEYS, "worker.token"));
    let expiry = certificate_expiry_s(&api.file(KEYS, "role.pem")).unwrap();
    api.take_writes();
    // Ten days are less than a third of 90 days.
    let settings = settings(KeySource::All);
    let report = apply(&api, &settings).await.unwrap();
    assert_eq!(
        report,
        ["renewed client-key.pem, client.pem, role-key.pem, role.pem in the Secret ml/demo-keys"]
    );
    assert_eq!(api.take_writes(), [format!("PATCH {KEYS}")]);
    assert!(certificate_expiry_s(&api.file(KEYS, "role.pem")).unwrap() > expiry + 70 * DAY_S);
    assert_eq!(
        (api.file(KEYS, "ca.pem"), api.file(KEYS, SECRET_FILE), api.file(KEYS, "worker.token")),
        (authority, secret, worker)
    );
    assert_eq!(apply(&api, &settings).await.unwrap(), ["the Secret ml/demo-keys needs no change"]);
}

#[tokio::test]
async fn a_certificate_without_a_new_host_is_renewed() {
    let api = SecretApi::start().await;
    let mut settings = settings(KeySource::All);
    apply(&api, &settings).await.unwrap();
    let client = api.file(KEYS, "client.pem");
    settings.hosts.push("feedline.example.org".to_owned());
    let report = apply(&api, &settings).await.unwrap();
    assert_eq!(report, ["renewed role-key.pem, role.pem in the Secret ml/demo-keys"]);
    for host in &settings.hosts {
        assert!(certificate_contains_host(&api.file(KEYS, "role.pem"), host), "{host}");
    }
    assert_eq!(api.file(KEYS, "client.pem"), client);
}

#[tokio::test]
async fn tokens_are_renewed_after_two_thirds_of_their_validity() {
    let api = SecretApi::start().await;
    let settings = settings(KeySource::Tokens);
    let start_s = now_s();
    apply_at(&api, &settings, start_s).await.unwrap();
    assert_eq!(api.files(KEYS), ["admin.token", "client.token", "secret", "worker.token"]);
    let token = api.file(KEYS, "client.token");
    assert_eq!(token, token.trim(), "the prometheus-operator sends the text as it is");
    let secret = api.file(KEYS, SECRET_FILE);
    let before = apply_at(&api, &settings, start_s + 60 * DAY_S).await.unwrap();
    assert_eq!(before, ["the Secret ml/demo-keys needs no change"]);
    let after_s = start_s + 60 * DAY_S + 1;
    let after = apply_at(&api, &settings, after_s).await.unwrap();
    assert_eq!(after, ["renewed admin.token, client.token, worker.token in the Secret ml/demo-keys"]);
    assert_eq!(claims_of(&api, KEYS, "admin.token", after_s).unwrap().expires_s, Some(after_s + 90 * DAY_S));
    assert_eq!(api.file(KEYS, SECRET_FILE), secret);
    let again = apply_at(&api, &settings, after_s).await.unwrap();
    assert_eq!(again, ["the Secret ml/demo-keys needs no change"]);
}

#[tokio::test]
async fn a_change_that_another_process_made_is_not_overwritten() {
    let api = SecretApi::start().await;
    let mut settings = settings(KeySource::All);
    apply(&api, &settings).await.unwrap();
    settings.hosts.push("feedline.example.org".to_owned());
    let other = SecretApi::start().await;
    apply(&other, &settings).await.unwrap();
    let certificate = other.file(KEYS, "role.pem");
    let expected = certificate.clone();
    api.with(|state| {
        state.interfere(Method::PATCH, move |state| state.set_file(KEYS, "role.pem", &certificate));
    });
    assert_eq!(apply(&api, &settings).await.unwrap(), ["the Secret ml/demo-keys needs no change"]);
    assert_eq!(api.file(KEYS, "role.pem"), expected);
}

#[tokio::test]
async fn an_incomplete_secret_is_an_error_with_the_missing_key() {
    let api = SecretApi::start().await;
    let existing = settings(KeySource::Existing);
    assert_eq!(
        apply(&api, &existing).await.unwrap_err(),
        "the Secret ml/demo-keys does not exist: create it from the files of `feedline keys new`, for example with `kubectl create secret generic`"
    );
    apply(&api, &settings(KeySource::All)).await.unwrap();
    assert_eq!(apply(&api, &existing).await.unwrap(), ["the Secret ml/demo-keys is complete"]);
    api.with(|state| state.remove_file(KEYS, "client.pem"));
    let error = apply(&api, &existing).await.unwrap_err();
    assert_eq!(
        error,
        "the Secret ml/demo-keys has no key client.pem: create it from all files of `feedline keys new`"
    );
    api.with(|state| state.set_file(KEYS, "admin.token", " \n"));
    api.take_writes();
    let error = apply(&api, &settings(KeySource::All)).await.unwrap_err();
    assert!(
        error.starts_with(
            "the Secret ml/demo-keys has no key client.pem (and 1 more): add it, or delete the Secret"
        ),
        "{error}"
    );
    // The Secret is sufficient if another program issues the certificates.
    api.with(|state| state.set_file(KEYS, "admin.token", "old"));
    let report = apply(&api, &settings(KeySource::Tokens)).await.unwrap();
    assert_eq!(report, ["renewed admin.token in the Secret ml/demo-keys"]);
    // A token of `feedline keys token` ends with a line end, which does not fit into a header of Prometheus.
    let token = api.file(KEYS, "client.token");
    assert_eq!(token, token.trim());
    api.with(|state| state.set_file(KEYS, "client.token", &(token + "\n")));
    let report = apply(&api, &settings(KeySource::Tokens)).await.unwrap();
    assert_eq!(report, ["renewed client.token in the Secret ml/demo-keys"]);
    assert!(!api.file(KEYS, "client.token").ends_with('\n'));
    api.with(|state| state.set_file(KEYS, SECRET_FILE, "hunter2"));
    let error = apply(&api, &settings(KeySource::Tokens)).await.unwrap_err();
    assert!(error.starts_with("the key secret of the Secret ml/demo-keys is invalid: "), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn without_the_key_of_the_authority_certificates_are_not_renewed() {
    let api = SecretApi::start().await;
    let short = ClusterKeySettings { days: 10, ..settings(KeySource::All) };
    apply(&api, &short).await.unwrap();
    let other = CertificateAuthority::new(1).unwrap().certified_key().key.clone();
    api.with(|state| state.set_file(AUTHORITY, AUTHORITY_KEY, &other));
    assert_eq!(apply(&api, &short).await.unwrap(), ["the Secret ml/demo-keys needs no change"]);
    let files = all_files(&api);
    for (key, expected) in [
        (Some(other.as_str()), "the Secret ml/demo-ca contains the key of another authority"),
        (Some("nonsense"), "the Secret ml/demo-ca contains no private key in PEM in its key ca-key.pem"),
        (
            None,
            "the Secret ml/demo-ca with the key of their authority does not exist: create it from the file",
        ),
    ] {
        match key {
            Some(key) => api.with(|state| state.set_file(AUTHORITY, AUTHORITY_KEY, key)),
            None => api.with(|state| state.remove(AUTHORITY)),
        }
        let error = apply(&api, &settings(KeySource::All)).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(all_files(&api), files);
}

#[tokio::test]
async fn copies_contain_a_client_certificate_and_a_restricted_token() {
    let api = SecretApi::start().await;
    let settings = with_copies(settings(KeySource::All), &["team-a", "team-b"]);
    let start_s = now_s();
    apply_at(&api, &settings, start_s).await.unwrap();
    let copy = "team-b/feedline-client";
    assert_eq!(api.files(copy), ["ca.pem", "client-key.pem", "client.pem", "client.token"]);
    assert_eq!(api.file(copy, "client-key.pem"), api.file(KEYS, "client-key.pem"));
    let token = api.file(copy, "client.token");
    assert_eq!(token, token.trim(), "Prometheus can use the file");
    let claims = claims_of(&api, copy, "client.token", start_s).unwrap();
    assert_eq!(claims.scopes, [Scope::Consume].into());
    assert_eq!(
        (claims.tenant.as_deref(), claims.holder.as_str()),
        (Some("vision"), "clients in namespace team-b")
    );
    api.take_writes();
    apply_at(&api, &settings, start_s + 60 * DAY_S).await.unwrap();
    assert_eq!(api.take_writes(), Vec::<String>::new());
    // The token and a changed certificate are renewed, and a deleted copy is created again.
    api.with(|state| state.remove("team-a/feedline-client"));
    api.with(|state| state.set_file(copy, "ca.pem", "old"));
    let tokens = ClusterKeySettings { source: KeySource::Tokens, ..settings.clone() };
    let report = apply_at(&api, &tokens, start_s + 61 * DAY_S).await.unwrap();
    assert_eq!(
        report[1..],
        [
            "created the Secret team-a/feedline-client",
            "renewed ca.pem, client.token in the Secret team-b/feedline-client"
        ]
    );
    // Other scopes replace the token.
    let mut wider = settings.clone();
    wider.copies.as_mut().unwrap().scopes.insert(Scope::Submit);
    wider.copies.as_mut().unwrap().namespaces.truncate(1);
    let report = apply_at(&api, &wider, start_s).await.unwrap();
    assert_eq!(report[1..], ["renewed client.token in the Secret team-a/feedline-client"]);
}

#[tokio::test]
async fn an_error_in_one_namespace_does_not_prevent_other_copies() {
    let api = SecretApi::start().await;
    let settings = with_copies(settings(KeySource::All), &["lost", "foreign", "closed", "team-a"]);
    api.with(|state| {
        state.remove_namespace("lost");
        state.insert("foreign/feedline-client", &[("token", "own".to_owned())]);
        state.forbid("closed/feedline-client");
    });
    let mut report = Vec::new();
    let error = apply_cluster_keys(&api.client, &settings, now_s(), &mut report).await.unwrap_err();
    for part in [
        "cannot create the Secret lost/feedline-client: namespaces \"lost\" not found; create the namespace lost",
        "the Secret foreign/feedline-client was not created by Feedline: delete it, or pass another name with --copy-name",
        "cannot read the Secret closed/feedline-client: secrets \"feedline-client\" is forbidden; give this account a Role",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(report.last().unwrap(), "created the Secret team-a/feedline-client");
    assert_eq!(api.files("foreign/feedline-client"), ["token"]);
}

#[tokio::test]
async fn copies_use_the_certificate_of_another_secret() {
    let api = SecretApi::start().await;
    let mut settings = with_copies(settings(KeySource::Tokens), &["team-a"]);
    settings.copies.as_mut().unwrap().certificate_secret = Some("demo-client-tls".to_owned());
    let error = apply(&api, &settings).await.unwrap_err();
    assert!(error.starts_with("the Secret ml/demo-client-tls does not exist: run `kubectl"), "{error}");
    let text = |text: &str| text.to_owned();
    api.with(|state| {
        let files = [("tls.crt", text("certificate")), ("tls.key", text("key"))];
        state.insert("ml/demo-client-tls", &files);
    });
    let error = apply(&api, &settings).await.unwrap_err();
    assert!(error.starts_with("the Secret ml/demo-client-tls has no key ca.crt: use an issuer"), "{error}");
    api.with(|state| state.set_file("ml/demo-client-tls", "ca.crt", "authority"));
    apply(&api, &settings).await.unwrap();
    let copy = "team-a/feedline-client";
    let copied = ["ca.pem", "client.pem", "client-key.pem"].map(|file| api.file(copy, file));
    assert_eq!(copied, ["authority", "certificate", "key"]);
}

#[tokio::test]
async fn a_rotated_secret_keeps_tokens_until_all_coordinators_accept_it() {
    let api = SecretApi::start().await;
    let settings = with_copies(settings(KeySource::All), &["team-a"]);
    let start_s = now_s();
    apply_at(&api, &settings, start_s).await.unwrap();
    let old = api.file(KEYS, SECRET_FILE);
    rotate_cluster_secret(&api.client, &settings, start_s).await.unwrap();
    let both = api.file(KEYS, SECRET_FILE);
    assert_eq!(both.lines().nth(1), Some(old.trim()));
    assert_ne!(both.lines().next(), Some(old.trim()));
    let error = rotate_cluster_secret(&api.client, &settings, start_s).await.unwrap_err();
    assert!(error.contains("still contains the previous secret of the cluster"), "{error}");
    // Coordinators whose files have not changed yet reject tokens of the new secret.
    api.take_writes();
    apply_at(&api, &settings, start_s + 599).await.unwrap();
    assert_eq!(api.take_writes(), Vec::<String>::new());
    let report = apply_at(&api, &settings, start_s + 600).await.unwrap();
    assert_eq!(
        report,
        [
            "renewed admin.token, client.token, worker.token in the Secret ml/demo-keys",
            "renewed client.token in the Secret team-a/feedline-client"
        ]
    );
    let new = Tokens::new(&Secret::parse(&both).unwrap().without_previous());
    assert!(new.check(&api.file(KEYS, "worker.token"), start_s + 600).is_ok());
    assert!(new.check(&api.file("team-a/feedline-client", "client.token"), start_s + 600).is_ok());
    // Tokens of the previous secret have expired after the validity of tokens.
    let tokens = ClusterKeySettings { source: KeySource::Tokens, copies: None, ..settings };
    apply_at(&api, &tokens, start_s + 90 * DAY_S).await.unwrap();
    assert_eq!(api.file(KEYS, SECRET_FILE).lines().collect::<Vec<_>>(), [both.lines().next().unwrap()]);
    assert!(api.metadata(KEYS)["annotations"].get(ROTATED_ANNOTATION).is_none());
    assert_eq!(api.metadata(KEYS)["annotations"]["helm.sh/resource-policy"], "keep");
}
