//! Describes the identity with which a client accesses a store, and explains why a store denied a request. Descriptions
//! contain no secrets: access key ids are shortened.

use object_store::path::Path;

use crate::access::{StoreOptions, is_true};
use crate::access_denied::{AccessDenied, find_access_denied};
use crate::causes;
use crate::profile::{Profile, ProfileSource};
use crate::throttling::StoreKind;

/// Number of characters of an access key id that messages show at the start and at the end.
const SHOWN_KEY_CHARS: usize = 4;
/// Minimum length of an access key id of which messages show a part.
const MIN_SHOWN_KEY_CHARS: usize = 12;
/// Address of the service from which cloud machines get their credentials.
const METADATA_ADDRESSES: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];

/// The identity of a client.
#[derive(Debug, Clone)]
pub(crate) struct StoreIdentity {
    kind: StoreKind,
    /// The bucket or container, with the scheme.
    root: String,
    /// The identity, as part of a sentence.
    description: String,
    /// Whether the options contain no credentials, so that they come from the metadata service of the machine.
    is_from_machine: bool,
    /// What the user must renew when the credentials have expired; `None` if a provider renews them.
    static_keys: Option<String>,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreAction {
    Read,
    List,
    Write,
    Delete,
}

impl StoreIdentity {
    /// Describes the identity of the options of a store. `credentials` is the name of the credentials in the pipeline.
    pub(crate) fn new(
        kind: StoreKind,
        root: &str,
        credentials: Option<&str>,
        options: &StoreOptions,
    ) -> Self {
        let get = |names: &[&str]| {
            let is_set = |(key, value): &(&str, &str)| names.contains(key) && !value.is_empty();
            options.iter().filter(is_set).map(|(_, value)| value).last()
        };
        let found = match kind {
            StoreKind::S3 => s3_identity(&get),
            StoreKind::Google => google_identity(&get),
            StoreKind::Azure => azure_identity(&get),
            StoreKind::Hub | StoreKind::Web => Some("an anonymous request".to_owned()),
        };
        let machine = match kind {
            StoreKind::S3 => "the role of this machine, from its metadata service",
            StoreKind::Google => "the service account of this machine, from its metadata service",
            StoreKind::Azure => "the managed identity of this machine",
            StoreKind::Hub | StoreKind::Web => "",
        };
        let (is_from_machine, identity) = (found.is_none(), found.unwrap_or_else(|| machine.to_owned()));
        let description = match credentials {
            Some(name) => format!("{identity} (credentials `{name}`)"),
            None => identity,
        };
        let has_keys = kind == StoreKind::S3 && get(&["aws_access_key_id", "access_key_id"]).is_some();
        let static_keys = has_keys.then(|| match credentials {
            Some(name) => format!("the keys of the credentials `{name}`"),
            None => "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN".to_owned(),
        });
        Self { kind, root: root.to_owned(), description, is_from_machine, static_keys }
    }

    /// Describes the identity of an AWS profile.
    pub(crate) fn of_profile(root: &str, credentials: Option<&str>, profile: &Profile) -> Self {
        let identity = match &profile.source {
            ProfileSource::Static { key_id, .. } => format!("access key {}", shorten(key_id)),
            ProfileSource::Process { .. } => "the access key from credential_process".to_owned(),
            ProfileSource::Role { role_arn, .. } => format!("role {role_arn}"),
            ProfileSource::WebIdentity { role_arn, .. } => {
                format!("role {role_arn}, from a web identity token,")
            }
        };
        let named = credentials.map(|name| format!(" (credentials `{name}`)")).unwrap_or_default();
        let description = format!("{identity} of the AWS profile `{}`{named}", profile.name);
        let (kind, root) = (StoreKind::S3, root.to_owned());
        // The files of the profile are read again after they have changed.
        Self { kind, root, description, is_from_machine: false, static_keys: None }
    }

    /// Replaces the error of a denied request with an error that names the identity and the missing right. Adds the
    /// identity to the error of a metadata service, and to that of expired credentials, which is permanent only if no provider
    /// renews them.
    pub(crate) fn explain(
        &self,
        action: StoreAction,
        path: Option<&Path>,
        error: object_store::Error,
    ) -> object_store::Error {
        use object_store::Error as E;
        if crate::guard::find_guard_error(&error).is_some() || find_access_denied(&error).is_some() {
            return error;
        }
        let text = causes::describe(&error);
        if self.is_from_machine && METADATA_ADDRESSES.iter().any(|address| text.contains(address)) {
            // The metadata service may be available again.
            let source = Box::new(AccessDenied::new(self.missing_credentials()));
            return E::Generic { store: "metadata service", source };
        }
        let is_denied = match &error {
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => true,
            E::Generic { .. } => {
                let codes = [
                    "401 Unauthorized",
                    "403 Forbidden",
                    "InvalidAccessKeyId",
                    "InvalidToken",
                    "InvalidIdentityToken",
                ];
                codes.iter().any(|code| text.contains(code))
            }
            _ => false,
        };
        // S3 responds with status 400, for which there is no error of its own.
        let is_invalid = matches!(error, E::Generic { .. })
            && (text.contains("400 Bad Request") || error_code(&text).is_some());
        match expired_code(&text) {
            Some(code) if is_denied || is_invalid => self.expired(path, code),
            _ if is_denied => self.denied(path, self.explain_denied(action, path, &text)),
            _ => error,
        }
    }

    fn expired(&self, path: Option<&Path>, code: &str) -> object_store::Error {
        let identity = &self.description;
        let Some(keys) = &self.static_keys else {
            let sentence = format!(
                "access denied for {identity} ({code}): the credentials have expired and were not renewed: renew them, or check what \
                 renews them"
            );
            // A retry uses renewed credentials.
            let source = Box::new(AccessDenied::new(sentence));
            return object_store::Error::Generic { store: "expired credentials", source };
        };
        let sentence = format!(
            "access denied for {identity} ({code}): the credentials have expired: renew {keys}, or use credentials that Feedline renews, \
             such as a role or a profile"
        );
        self.denied(path, sentence)
    }

    fn denied(&self, path: Option<&Path>, sentence: String) -> object_store::Error {
        let path = path.map(ToString::to_string).unwrap_or_default();
        object_store::Error::PermissionDenied { path, source: Box::new(AccessDenied::new(sentence)) }
    }

    fn missing_credentials(&self) -> String {
        let fix = match self.kind {
            StoreKind::S3 => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket"
            }
            StoreKind::Google => {
                "set GOOGLE_SERVICE_ACCOUNT, or GOOGLE_SKIP_SIGNATURE=true for a public bucket"
            }
            _ => "set AZURE_STORAGE_ACCOUNT_KEY, or AZURE_SKIP_SIGNATURE=true for a public container",
        };
        format!(
            "access denied: the options contain no credentials, and {} is not available; {fix}",
            self.description
        )
    }

    fn explain_denied(&self, action: StoreAction, path: Option<&Path>, text: &str) -> String {
        let code = error_code(text);
        let cause = code.as_deref().or_else(|| status(text)).unwrap_or("denied");
        let identity = &self.description;
        let reason = match cause {
            "InvalidAccessKeyId" | "InvalidToken" | "InvalidClientTokenId" | "InvalidIdentityToken" => {
                "the store does not accept this identity: check the credentials".to_owned()
            }
            "SignatureDoesNotMatch" | "AuthenticationFailed" => {
                "the secret does not belong to this identity: check the credentials".to_owned()
            }
            "RequestTimeTooSkewed" => "the clock of this machine is wrong: synchronize the clock".to_owned(),
            "InvalidObjectState" => "the object is archived: restore it".to_owned(),
            "AuthorizationFailure" => {
                "the store rejects the network of this machine, or the right is missing: check the firewall of the store".to_owned()
            }
            "401 Unauthorized" => "the credentials are missing or invalid: check the credentials".to_owned(),
            _ => format!("{}: grant this right, or use other credentials", self.missing_right(action, path)),
        };
        format!("access denied for {identity} ({cause}): {reason}")
    }

    /// The right that a request needs, and the resource.
    fn missing_right(&self, action: StoreAction, path: Option<&Path>) -> String {
        let bucket = self.root.split("://").nth(1).unwrap_or_default();
        let key = path.map(|path| format!("/{path}")).unwrap_or_default();
        match self.kind {
            StoreKind::S3 => {
                let (right, resource) = match action {
                    StoreAction::Read => ("s3:GetObject", format!("arn:aws:s3:::{bucket}{key}")),
                    StoreAction::List => ("s3:ListBucket", format!("arn:aws:s3:::{bucket}")),
                    StoreAction::Write => ("s3:PutObject", format!("arn:aws:s3:::{bucket}{key}")),
                    StoreAction::Delete => ("s3:DeleteObject", format!("arn:aws:s3:::{bucket}{key}")),
                };
                format!("the right {right} on {resource} is missing")
            }
            StoreKind::Google => {
                let right = match action {
                    StoreAction::Read => "storage.objects.get",
                    StoreAction::List => "storage.objects.list",
                    StoreAction::Write => "storage.objects.create",
                    StoreAction::Delete => "storage.objects.delete",
                };
                format!("the right {right} on the bucket `{bucket}` is missing")
            }
            StoreKind::Azure => {
                let (right, role) = match action {
                    StoreAction::Read | StoreAction::List => ("read", "Storage Blob Data Reader"),
                    StoreAction::Write => ("write", "Storage Blob Data Contributor"),
                    StoreAction::Delete => ("delete", "Storage Blob Data Contributor"),
                };
                format!(
                    "the right Microsoft.Storage/storageAccounts/blobServices/containers/blobs/{right} on `{}` is missing, \
                     which the role {role} contains",
                    self.root
                )
            }
            StoreKind::Hub | StoreKind::Web => "the server does not allow the request".to_owned(),
        }
    }
}

/// Whether the credentials of a request have expired, and their provider may have renewed them since.
pub(crate) fn may_be_renewed(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { .. }) && expired_code(&causes::describe(error)).is_some()
}

/// Returns the code of expired credentials in the text of an error.
fn expired_code(text: &str) -> Option<&'static str> {
    let is_code = |code: &&str| error_code(text).map_or_else(|| text.contains(code), |found| found == *code);
    ["ExpiredTokenException", "ExpiredToken", "TokenRefreshRequired", "RequestExpired"]
        .into_iter()
        .find(is_code)
}

type GetOption<'a> = dyn Fn(&[&str]) -> Option<&'a str> + 'a;

fn s3_identity<'a>(get: &GetOption<'a>) -> Option<String> {
    if is_true(get(&["aws_skip_signature", "skip_signature"])) {
        return Some("an anonymous request".to_owned());
    }
    if let Some(key) = get(&["aws_access_key_id", "access_key_id"]) {
        return Some(format!("access key {}", shorten(key)));
    }
    if get(&["aws_web_identity_token_file", "web_identity_token_file"]).is_some() {
        let role = get(&["aws_role_arn", "role_arn"]).unwrap_or("of AWS_ROLE_ARN");
        return Some(format!("role {role}, from a web identity token"));
    }
    let container = ["aws_container_credentials_relative_uri", "aws_container_credentials_full_uri"];
    get(&container).map(|_| "the role of this container".to_owned())
}

fn google_identity<'a>(get: &GetOption<'a>) -> Option<String> {
    if is_true(get(&["google_skip_signature", "skip_signature"])) {
        return Some("an anonymous request".to_owned());
    }
    if let Some(key) = get(&["google_service_account_key", "service_account_key"]) {
        return Some(account_of_json(key).unwrap_or_else(|| "the service account of the key".to_owned()));
    }
    let files = ["google_service_account", "google_service_account_path", "service_account"];
    let file = get(&files).or_else(|| get(&["google_application_credentials", "application_credentials"]))?;
    let text = std::fs::read_to_string(file).unwrap_or_default();
    Some(account_of_json(&text).unwrap_or_else(|| format!("the account in {file}")))
}

/// The e-mail address of a service account in its key.
fn account_of_json(text: &str) -> Option<String> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    json["client_email"].as_str().map(|email| format!("service account {email}"))
}

fn azure_identity<'a>(get: &GetOption<'a>) -> Option<String> {
    if is_true(get(&["azure_skip_signature", "skip_signature"])) {
        return Some("an anonymous request".to_owned());
    }
    let account = get(&["azure_storage_account_name", "account_name"]).unwrap_or("of the URL");
    if is_true(get(&["azure_storage_use_emulator", "use_emulator"]))
        || get(&["azure_storage_account_key", "azure_storage_access_key", "account_key"]).is_some()
    {
        return Some(format!("the key of storage account {account}"));
    }
    if get(&["azure_storage_sas_key", "azure_storage_sas_token", "sas_key"]).is_some() {
        return Some(format!("the SAS token of storage account {account}"));
    }
    get(&["azure_client_id", "azure_storage_client_id", "client_id"]).map(|id| format!("client {id}"))
}

/// Shortens an access key id, so that messages identify it without showing it.
fn shorten(key: &str) -> String {
    let chars: Vec<char> = key.chars().collect();
    if chars.len() < MIN_SHOWN_KEY_CHARS {
        return "***".to_owned();
    }
    let part = |chars: &[char]| chars.iter().collect::<String>();
    format!("{}...{}", part(&chars[..SHOWN_KEY_CHARS]), part(&chars[chars.len() - SHOWN_KEY_CHARS..]))
}

/// Returns the code in the XML or JSON body of a response.
fn error_code(text: &str) -> Option<String> {
    let xml = text.split_once("<Code>").and_then(|(_, rest)| Some(rest.split_once("</Code>")?.0));
    let code = xml?.trim();
    let is_code =
        !code.is_empty() && code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_code.then(|| code.to_owned())
}

fn status(text: &str) -> Option<&'static str> {
    ["401 Unauthorized", "403 Forbidden"].into_iter().find(|status| text.contains(status))
}

#[cfg(test)]
mod tests;
