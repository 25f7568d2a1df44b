//! Secrets in URLs: a pipeline is kept, logged and shown, so that none may stand in it.

use super::normal::{AZURE, decoded};

/// Names of query parameters that carry a key, a token or a signature, in lower case.
const PARAMETERS: [&str; 18] = [
    "sig",
    "signature",
    "accesskeyid",
    "awsaccesskeyid",
    "googleaccessid",
    "ossaccesskeyid",
    "access_key",
    "access_key_id",
    "secret_key",
    "secret_access_key",
    "secret",
    "password",
    "token",
    "access_token",
    "session_token",
    "security-token",
    "apikey",
    "api_key",
];
/// How the names of others begin: signed URLs of Amazon, Google, Alibaba and Tencent.
const PREFIXES: [&str; 4] = ["x-amz-", "x-goog-", "x-oss-", "q-sign"];

/// Where keys belong.
const FIX: &str = "put the key into a file of credentials, start coordinators and workers with `--credentials FILE`, and name \
                   it in the pipeline's source with `credentials: NAME`";

/// Refuses a URL with a user, a password, a key or a signature in it.
///
/// # Errors
/// One sentence with the fix, in which nothing of the secret stands.
pub fn refuse_secrets(url: &str) -> Result<(), String> {
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(()) };
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "file" {
        return Ok(());
    }
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    if has_user(&scheme, authority) {
        return Err(format!(
            "a URL of scheme {} has a user or a password in front of its host: {FIX}",
            shown(&scheme)
        ));
    }
    if let Some((_, query)) = rest.split_once(['?', '#'])
        && let Some(name) = query.split(['&', ';', '?', '#']).find_map(secret_parameter)
    {
        return Err(format!("`{}` carries a key or a signature, `{name}`: {FIX}", without_query(url)));
    }
    Ok(())
}

/// A URL up to its query: what may be shown of one that is refused for what it carries.
pub fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

/// A name that is not one of a scheme may be the beginning of anything.
fn shown(scheme: &str) -> &str {
    let is_scheme = scheme.len() <= 8 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_scheme { scheme } else { "that is not known" }
}

/// Whether something stands before the host. A password may have a `/` in it, behind which the `@` is not looked for: so a
/// colon must have a port behind it.
fn has_user(scheme: &str, authority: &str) -> bool {
    if let Some((before, _)) = authority.rsplit_once('@') {
        let is_container = AZURE.contains(&scheme)
            && before.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '$' | '_'));
        return !is_container;
    }
    let behind_brackets = authority.rsplit(']').next().unwrap_or_default();
    let port = behind_brackets.split_once(':').map_or("", |(_, port)| port);
    !port.bytes().all(|digit| digit.is_ascii_digit())
}

/// The parameter's name, where it is one that carries a secret.
fn secret_parameter(parameter: &str) -> Option<String> {
    let (name, _) = parameter.split_once('=')?;
    let name = decoded(name).ok()?;
    let plain = name.to_ascii_lowercase();
    let is_secret =
        PARAMETERS.contains(&plain.as_str()) || PREFIXES.iter().any(|prefix| plain.starts_with(prefix));
    is_secret.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_refused_and_not_repeated() {
        for url in [
            "https://user:HUSH@host/x",
            "https://HUSH@host/x",
            "s3://KEY:HU/SH@bucket/x",
            "https://user:HU?SH@host/x",
            "gs://HUSH@bucket/x",
            "abfss://box:HUSH@account.dfs.core.windows.net/x",
            "https://host/x?X-Amz-Signature=HUSH&X-Amz-Date=1",
            "https://host/x?a=1&x-amz-credential=HUSH",
            "https://host/x?sv=2020&sig=HUSH",
            "https://host/x?%73ig=HUSH",
            "s3://bucket/x?AWSAccessKeyId=HUSH",
            "https://host/x#access_token=HUSH",
            "HTTPS://host/x?TOKEN=HUSH",
        ] {
            let refused = refuse_secrets(url).unwrap_err();
            assert!(refused.contains("--credentials FILE"), "{url}: {refused}");
            assert!(!refused.contains("HUSH") && !refused.contains("HU"), "{url}: {refused}");
        }
    }

    #[test]
    fn the_sentence_names_the_place_and_the_fix() {
        assert_eq!(
            refuse_secrets("https://host/x?a=1&sig=abc").unwrap_err(),
            "`https://host/x` carries a key or a signature, `sig`: put the key into a file of credentials, start \
             coordinators and workers with `--credentials FILE`, and name it in the pipeline's source with `credentials: NAME`"
        );
        assert!(
            refuse_secrets("https://a:b@host/x")
                .unwrap_err()
                .starts_with("a URL of scheme https has a user or a password in front of its host: put")
        );
    }

    #[test]
    fn ordinary_urls_pass() {
        for url in [
            "/data/user:pass@x?sig=1",
            "file:///data/a@b",
            "s3://bucket/a@b/c:d?.tar",
            "s3://bucket/x?[0-9].tar",
            "http://host:9000/a",
            "http://[::1]:9000/a",
            "http://[fe80::1]/a",
            "https://host/a?partNumber=3",
            "abfss://box@account.dfs.core.windows.net/x",
            "az://box/x",
            "relative@x",
        ] {
            assert_eq!(refuse_secrets(url), Ok(()), "{url}");
        }
    }
}
