//! Rejects secrets in URLs, because pipelines are stored, logged and displayed.

use super::kafka::server_urls;
use super::normal::AZURE_SCHEMES;
use super::percent::percent_decode;

/// Lower-case names of query parameters that contain a key, a token or a signature.
const SECRET_PARAMETERS: [&str; 18] = [
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
/// Prefixes of parameter names in signed URLs of Amazon, Google, Alibaba and Tencent.
const SIGNATURE_PREFIXES: [&str; 4] = ["x-amz-", "x-goog-", "x-oss-", "q-sign"];

/// The fix in error messages about secrets.
const SECRET_FIX: &str = "write the key to a credentials file, start coordinators and workers with `--credentials FILE`, and set \
                   `credentials: NAME` in the pipeline's source";

/// Rejects a URL that contains a user, a password, a key or a signature.
///
/// # Errors
/// Returns a message with the fix. The message does not repeat the secret.
pub fn check_no_secrets(url: &str) -> Result<(), String> {
    if let Some(servers) = server_urls(url).filter(|servers| servers.len() > 1) {
        return servers.iter().try_for_each(|server| check_no_secrets(server));
    }
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(()) };
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "file" {
        return Ok(());
    }
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    if has_user_info(&scheme, authority) {
        return Err(format!(
            "a URL with scheme {} contains a user name or password: {SECRET_FIX}",
            display_scheme(&scheme)
        ));
    }
    if let Some((_, query)) = rest.split_once(['?', '#'])
        && let Some(name) = query.split(['&', ';', '?', '#']).find_map(secret_parameter)
    {
        return Err(format!(
            "`{}` contains a key or signature in the query parameter `{name}`: {SECRET_FIX}",
            without_query(url)
        ));
    }
    Ok(())
}

/// The URL without its query and fragment, which may contain secrets.
pub fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

/// The scheme for messages. Text that does not look like a scheme is hidden, because it may be part of a secret.
fn display_scheme(scheme: &str) -> &str {
    let is_scheme = scheme.len() <= 8 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_scheme { scheme } else { "`?`" }
}

/// Whether the authority contains a user or password. A password may contain `/`, which ends the authority before the `@`,
/// so a colon without a port number also counts as a password.
fn has_user_info(scheme: &str, authority: &str) -> bool {
    if let Some((before, _)) = authority.rsplit_once('@') {
        let is_container = AZURE_SCHEMES.contains(&scheme)
            && before.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '$' | '_'));
        return !is_container;
    }
    let after_brackets = authority.rsplit(']').next().unwrap_or_default();
    let port = after_brackets.split_once(':').map_or("", |(_, port)| port);
    !port.bytes().all(|digit| digit.is_ascii_digit())
}

/// Returns the name of a query parameter if the parameter contains a secret.
fn secret_parameter(parameter: &str) -> Option<String> {
    let (name, _) = parameter.split_once('=')?;
    let name = percent_decode(name).ok()?;
    let lower = name.to_ascii_lowercase();
    let is_secret = SECRET_PARAMETERS.contains(&lower.as_str())
        || SIGNATURE_PREFIXES.iter().any(|prefix| lower.starts_with(prefix));
    is_secret.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_rejected_and_not_repeated() {
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
            let error = check_no_secrets(url).unwrap_err();
            assert!(error.contains("--credentials FILE"), "{url}: {error}");
            assert!(!error.contains("HUSH") && !error.contains("HU"), "{url}: {error}");
        }
    }

    #[test]
    fn the_error_names_the_parameter_and_the_fix() {
        assert_eq!(
            check_no_secrets("https://host/x?a=1&sig=abc").unwrap_err(),
            "`https://host/x` contains a key or signature in the query parameter `sig`: write the key to a credentials file, start \
             coordinators and workers with `--credentials FILE`, and set `credentials: NAME` in the pipeline's source"
        );
        assert!(
            check_no_secrets("https://a:b@host/x")
                .unwrap_err()
                .starts_with("a URL with scheme https contains a user name or password: write")
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
            assert_eq!(check_no_secrets(url), Ok(()), "{url}");
        }
    }
}
