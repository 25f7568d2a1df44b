//! Tests of identities: each kind of credentials has a description without secrets, and each cause has a sentence.

use super::*;

fn identity(kind: StoreKind, name: Option<&str>, options: &[(&str, &str)]) -> StoreIdentity {
    let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    StoreIdentity::new(kind, "s3://bucket", name, &StoreOptions::new(options))
}

fn denied(body: &str) -> object_store::Error {
    object_store::Error::PermissionDenied { path: "a/b".to_owned(), source: body.to_owned().into() }
}

fn sentence(identity: &StoreIdentity, action: StoreAction, body: &str) -> String {
    let error = identity.explain(action, Some(&Path::from("a/b")), denied(body));
    find_access_denied(&error).expect("the error is explained").to_string()
}

#[test]
fn identities_are_described_without_secrets() {
    let describe = |kind, options: &[(&str, &str)]| identity(kind, None, options).description;
    let key = [("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "HUSH")];
    assert_eq!(describe(StoreKind::S3, &key), "access key AKIA...MPLE");
    assert_eq!(describe(StoreKind::S3, &[("aws_access_key_id", "short")]), "access key ***");
    assert_eq!(
        identity(StoreKind::S3, Some("mine"), &key).description,
        "access key AKIA...MPLE (credentials `mine`)"
    );
    let web = [("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")];
    assert_eq!(describe(StoreKind::S3, &web), "role arn:aws:iam::1:role/r, from a web identity token");
    assert_eq!(describe(StoreKind::S3, &[("aws_skip_signature", "true")]), "an anonymous request");
    assert_eq!(describe(StoreKind::S3, &[]), "the role of this machine, from its metadata service");
    let json = r#"{"client_email": "a@p.iam", "private_key": "HUSH"}"#;
    assert_eq!(
        describe(StoreKind::Google, &[("google_service_account_key", json)]),
        "service account a@p.iam"
    );
    let azure = [("azure_storage_account_name", "acc"), ("azure_storage_account_key", "HUSH")];
    assert_eq!(describe(StoreKind::Azure, &azure), "the key of storage account acc");
}

#[test]
fn each_cause_has_a_sentence() {
    let s3 = identity(StoreKind::S3, None, &[("aws_access_key_id", "AKIAIOSFODNN7EXAMPLE")]);
    let body =
        |code: &str| format!("403 Forbidden: <Error><Code>{code}</Code><Message>HUSH</Message></Error>");
    assert_eq!(
        sentence(&s3, StoreAction::Read, &body("AccessDenied")),
        "access denied for access key AKIA...MPLE (AccessDenied): the right s3:GetObject on arn:aws:s3:::bucket/a/b is missing: grant \
         this right, or use other credentials"
    );
    let listed = sentence(&s3, StoreAction::List, "403 Forbidden");
    assert!(
        listed.contains("(403 Forbidden): the right s3:ListBucket on arn:aws:s3:::bucket is missing"),
        "{listed}"
    );
    for (code, part) in [
        ("InvalidAccessKeyId", "does not accept this identity"),
        ("SignatureDoesNotMatch", "the secret does not belong to this identity: check the credentials"),
        ("RequestTimeTooSkewed", "synchronize the clock"),
        ("InvalidObjectState", "archived"),
    ] {
        let text = sentence(&s3, StoreAction::Read, &body(code));
        assert!(text.contains(part) && !text.contains("HUSH"), "{text}");
    }
    let google = identity(StoreKind::Google, None, &[]);
    assert!(sentence(&google, StoreAction::List, "403 Forbidden").contains("storage.objects.list"));
    let azure = identity(StoreKind::Azure, None, &[]);
    assert!(sentence(&azure, StoreAction::Read, "403 Forbidden").contains("Storage Blob Data Reader"));
}

#[test]
fn expired_credentials_are_denied_only_if_no_provider_renews_them() {
    let web = [("aws_role_arn", "arn:aws:iam::1:role/r"), ("aws_web_identity_token_file", "/token")];
    let container = [("aws_container_credentials_full_uri", "http://127.0.0.1/")];
    let keys = [("aws_access_key_id", "AKIAIOSFODNN7EXAMPLE")];
    for (options, is_renewed) in
        [(&web[..], true), (&container[..], true), (&keys[..0], true), (&keys[..], false)]
    {
        let s3 = identity(StoreKind::S3, None, options);
        for code in ["ExpiredToken", "RequestExpired", "TokenRefreshRequired"] {
            let error =
                s3.explain(StoreAction::Read, None, denied(&format!("<Error><Code>{code}</Code></Error>")));
            assert_eq!(may_be_renewed(&error), is_renewed, "{options:?}");
            let text = find_access_denied(&error).expect("the error is explained").to_string();
            assert!(
                text.contains(&s3.description) && text.contains(code) && text.contains("renew "),
                "{text}"
            );
        }
    }
    let s3 = identity(StoreKind::S3, None, &keys);
    let other = denied("403 Forbidden: ExpiredToken.txt <Error><Code>AccessDenied</Code></Error>");
    let error = s3.explain(StoreAction::Read, None, other);
    assert!(error.to_string().contains("the right s3:GetObject"), "{error}");
}

#[test]
fn missing_credentials_are_reported() {
    let s3 = identity(StoreKind::S3, None, &[]);
    let source = "Error performing PUT http://169.254.169.254/latest/api/token in 5s".into();
    let error = object_store::Error::Generic { store: "S3", source };
    let error = s3.explain(StoreAction::List, None, error);
    let text = find_access_denied(&error).expect("the error is explained").to_string();
    assert!(
        text.contains("the options contain no credentials") && text.contains("AWS_ACCESS_KEY_ID"),
        "{text}"
    );
}
