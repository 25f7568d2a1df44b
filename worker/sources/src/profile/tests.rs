//! Tests of profiles: selection, precedence, sources, renewal after the files have changed, and errors without secrets.

use futures::FutureExt;

use super::*;

fn files(config: &str, credentials: &str) -> (tempfile::TempDir, ProfileFiles) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        Some(path)
    };
    let files = ProfileFiles { config: at("config", config), credentials: at("credentials", credentials) };
    (folder, files)
}

fn options(files: &ProfileFiles, more: &[(&str, &str)]) -> StoreOptions {
    let path = |path: &Option<PathBuf>| path.as_ref().unwrap().to_str().unwrap().to_owned();
    let fixed =
        [("AWS_CONFIG_FILE", path(&files.config)), ("AWS_SHARED_CREDENTIALS_FILE", path(&files.credentials))];
    let more = more.iter().map(|(key, value)| (*key, (*value).to_owned()));
    StoreOptions::new(fixed.into_iter().chain(more).map(|(key, value)| (key.to_owned(), value)))
}

const KEYS: &str = "[default]\naws_access_key_id = D\naws_secret_access_key = HUSH\n[a]\naws_access_key_id = A\naws_secret_access_key = HUSH\naws_session_token = T\n";

#[test]
fn a_profile_is_selected_by_name_and_the_default_profile_otherwise() {
    let (_folder, files) =
        files("[profile a]\nregion = eu-west-1\nendpoint_url = http://e\n[other]\nrole_arn = x\n", KEYS);
    let select = |more: &[(&str, &str)]| select(&options(&files, more)).unwrap().map(|(profile, _)| profile);
    assert_eq!(select(&[]).unwrap().name, "default");
    let named = select(&[("AWS_PROFILE", "a")]).unwrap();
    assert_eq!((named.region.as_deref(), named.endpoint.as_deref()), (Some("eu-west-1"), Some("http://e")));
    let ProfileSource::Static { key_id, token, .. } = &named.source else { panic!("the profile has keys") };
    assert_eq!((key_id.as_str(), token.as_deref()), ("A", Some("T")));
    let keys = [("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "HUSH")];
    assert!(select(&keys).is_none());
    for other in [
        ("AWS_SKIP_SIGNATURE", "true"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "x"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "x"),
    ] {
        assert!(select(&[other]).is_none(), "{other:?}");
    }
    for incomplete in [("AWS_SKIP_SIGNATURE", "false"), ("AWS_ACCESS_KEY_ID", "x")] {
        assert_eq!(select(&[("AWS_PROFILE", "a"), incomplete]).unwrap().name, "a", "{incomplete:?}");
    }
    assert!(super::select(&StoreOptions::default()).unwrap().is_none());
}

#[test]
fn sources_of_profiles_are_resolved() {
    let config = "[profile role]\nrole_arn = arn:r\nsource_profile = a\nexternal_id = e\n\
        [profile process]\ncredential_process = /bin/get --all\n\
        [profile web]\nrole_arn = arn:w\nweb_identity_token_file = /token\n\
        [profile loop]\nrole_arn = arn:l\nsource_profile = loop2\n[profile loop2]\nrole_arn = arn:l\nsource_profile = loop\n\
        [profile alone]\nrole_arn = arn:l\n[profile lost]\nrole_arn = arn:l\nsource_profile = none\n\
        [profile sso]\nsso_session = s\n[profile empty]\nregion = x\n";
    let (_folder, files) = files(config, KEYS);
    let read = |name: &str| files.read(name, true).map(|profile| profile.unwrap().source);
    assert!(matches!(read("process"), Ok(ProfileSource::Process { command }) if command == "/bin/get --all"));
    assert!(
        matches!(read("web"), Ok(ProfileSource::WebIdentity { token_file, .. }) if token_file == "/token")
    );
    let Ok(ProfileSource::Role { source, external_id, session_name, .. }) = read("role") else {
        panic!("a role")
    };
    assert!(matches!(*source, ProfileSource::Static { key_id, .. } if key_id == "A"));
    assert_eq!((external_id.as_deref(), session_name.as_str()), (Some("e"), "feedline"));
    for (name, part) in [
        ("loop", "cycle"),
        ("alone", "add `source_profile`"),
        ("lost", "`none`, which does not exist"),
        ("sso", "aws configure export-credentials --profile sso"),
        ("empty", "has no credentials"),
        ("missing", "known: a, alone, default"),
    ] {
        let error = read(name).err().unwrap();
        assert!(error.contains(part) && !error.contains("HUSH"), "{error}");
    }
}

#[test]
fn a_profile_with_a_credential_source_is_one_sentence_with_the_replacement() {
    let config = "[profile machine]\nrole_arn = arn:m\ncredential_source = Ec2InstanceMetadata\n\
        [profile above]\nrole_arn = arn:a\nsource_profile = machine\n\
        [profile both]\nrole_arn = arn:b\ncredential_source = Environment\nsource_profile = a\n";
    let (_folder, files) = files(config, KEYS);
    let expected = "the AWS profile `machine` uses `credential_source`, which Feedline does not support: add `credential_process = \
                    aws configure export-credentials --profile machine --format process` to another profile";
    for name in ["machine", "above"] {
        assert_eq!(files.read(name, true).unwrap_err(), expected, "{name}");
    }
    let both = files.read("both", true).unwrap().unwrap();
    assert!(matches!(both.source, ProfileSource::Role { .. }), "it has a source profile");
}

#[tokio::test(start_paused = true)]
async fn changed_files_are_read_again() {
    let (_folder, files) = files("", KEYS);
    let roles = RoleService::new(None, "us-east-1", &object_store::ClientOptions::new()).unwrap();
    let provider = ProfileCredentials::new("a", files.clone(), roles);
    let key = || async { provider.get_credential().await.unwrap().key_id.clone() };
    assert_eq!(key().await, "A");
    let path = files.credentials.clone().unwrap();
    fs::write(&path, KEYS.replace("= A\n", "= B\n")).unwrap();
    let later = SystemTime::now() + Duration::from_secs(9);
    fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    assert_eq!(key().await, "A", "the files are checked once in a second");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(key().await, "B");
    fs::remove_file(&path).unwrap();
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(key().await, "B", "keys that still work are kept");
    assert!(!format!("{provider:?}").contains("HUSH"));
}

#[tokio::test]
async fn requests_use_credentials_that_are_still_valid_while_another_request_renews_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    // The second run does not end.
    let expires =
        chrono::DateTime::<chrono::Utc>::from(SystemTime::now() + Duration::from_secs(100)).to_rfc3339();
    let output = format!(
        r#"{{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "HUSH", "Expiration": "{expires}"}}"#
    );
    let script = format!("test -f {path}/first && exec sleep 1000\ntouch {path}/first; echo '{output}'\n");
    fs::write(folder.path().join("get"), script).unwrap();
    let (_folder, files) = files(&format!("[profile p]\ncredential_process = sh {path}/get\n"), "");
    let roles = RoleService::new(None, "us-east-1", &object_store::ClientOptions::new()).unwrap();
    let provider = ProfileCredentials::new("p", files, roles);
    assert_eq!(provider.get_credential().await.unwrap().key_id, "A");
    tokio::time::pause();
    tokio::time::advance(RENEWAL_PAUSE).await;
    let mut renewal = provider.get_credential();
    assert!(futures::poll!(&mut renewal).is_pending(), "it waits for the process");
    let others = provider.get_credential().now_or_never().expect("it does not wait");
    assert_eq!(others.unwrap().key_id, "A");
}

#[tokio::test]
async fn a_security_token_service_that_is_not_available_is_asked_again() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let throttled = "<Error><Code>Throttling</Code></Error>";
        let answers =
            [("500 Internal Server Error", ""), ("400 Bad Request", throttled), ("403 Forbidden", "")];
        for (status, body) in answers.into_iter().cycle() {
            let (mut stream, _) = listener.accept().await.unwrap();
            let received = stream.read(&mut [0; 4096]).await.unwrap();
            assert!(received > 0);
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        }
    });
    let (_folder, files) = files("[profile role]\nrole_arn = arn:r\nsource_profile = a\n", KEYS);
    let options = object_store::ClientOptions::new().with_allow_http(true);
    let provider =
        ProfileCredentials::new("role", files, RoleService::new(Some(endpoint), "x", &options).unwrap());
    for expected in ["500 Internal Server Error", "Throttling"] {
        let error = provider.get_credential().await.unwrap_err();
        let is_retryable = matches!(error, object_store::Error::Generic { .. });
        let text = crate::access_denied::find_access_denied(&error).expect("it is explained").to_string();
        assert!(is_retryable && text.contains("STS is not available") && text.contains(expected), "{text}");
        assert!(!text.contains("access denied"), "{text}");
    }
    let error = provider.get_credential().await.unwrap_err();
    assert!(matches!(error, object_store::Error::Unauthenticated { .. }), "{error}");
}
