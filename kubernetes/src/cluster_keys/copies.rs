//! Copies the CA, a client certificate and a token to the namespaces of clients.

use feedline_access::key_files::{AUTHORITY_CERTIFICATE, CLIENT_CERTIFICATE, CLIENT_TOKEN};
use feedline_access::token::Claims;

use super::lifetime::is_token_due;
use super::rotated_secret::RotatedSecret;
use super::run::{KeyRun, MAX_ATTEMPTS, too_many_changes};
use super::settings::ClientCopies;
use crate::secrets::{SecretChange, SecretFiles, SecretName, StoredSecret};

/// The files of a Secret of type `kubernetes.io/tls`, in the order of [`COPIED_FILES`].
const TLS_FILES: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
/// The copied files of a client, besides its token.
const COPIED_FILES: [&str; 3] = [AUTHORITY_CERTIFICATE, CLIENT_CERTIFICATE[0], CLIENT_CERTIFICATE[1]];

/// Copies keys to all namespaces. An error in one namespace does not prevent the copies in others.
pub(crate) async fn copy_keys(
    run: &KeyRun<'_>,
    copies: &ClientCopies,
    keys: &StoredSecret,
    report: &mut Vec<String>,
) -> Result<(), String> {
    let secret = RotatedSecret::new(&run.settings.keys_name(), keys)?;
    let certificate = client_certificate(run, copies, keys).await?;
    let copy = ClientCopy { run, copies, secret, certificate };
    let mut errors = Vec::new();
    for namespace in &copies.namespaces {
        match copy.write(namespace).await {
            Ok(sentence) => report.push(sentence),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
}

/// Returns the CA, the certificate and its key.
async fn client_certificate(
    run: &KeyRun<'_>,
    copies: &ClientCopies,
    keys: &StoredSecret,
) -> Result<SecretFiles, String> {
    let copied = |stored: &StoredSecret, sources: [&str; 3]| -> SecretFiles {
        let pairs = COPIED_FILES.into_iter().zip(sources);
        pairs.map(|(file, source)| (file.to_owned(), stored.file(source).to_owned())).collect()
    };
    let Some(name) = &copies.certificate_secret else { return Ok(copied(keys, COPIED_FILES)) };
    let name = SecretName::new(&run.settings.namespace, name);
    let stored = run.secrets.read(&name).await?.ok_or_else(|| {
        format!("the Secret {name} does not exist: run `kubectl --namespace {} describe certificate {}` to see why the certificate was not issued", name.namespace, name.name)
    })?;
    match TLS_FILES.into_iter().find(|file| stored.file(file).is_empty()) {
        None => Ok(copied(&stored, TLS_FILES)),
        Some(file) => Err(format!(
            "the Secret {name} has no key {file}: use an issuer with a CA, such as a CA issuer of cert-manager"
        )),
    }
}

/// The files of all copies.
struct ClientCopy<'a> {
    run: &'a KeyRun<'a>,
    copies: &'a ClientCopies,
    secret: RotatedSecret,
    certificate: SecretFiles,
}

impl ClientCopy<'_> {
    /// Creates or changes the copy in a namespace. Returns a sentence.
    async fn write(&self, namespace: &str) -> Result<String, String> {
        let name = SecretName::new(namespace, &self.copies.name);
        for _ in 0..MAX_ATTEMPTS {
            let Some(stored) = self.run.secrets.read(&name).await? else {
                let files = self.files(namespace);
                if self.run.secrets.create(&name, &files).await? {
                    return Ok(format!("created the Secret {name}"));
                }
                continue;
            };
            if !stored.is_managed {
                return Err(format!(
                    "the Secret {name} was not created by Feedline: delete it, or pass another name with --copy-name"
                ));
            }
            let change = self.due_changes(namespace, &stored);
            if change.is_empty() {
                return Ok(format!("the Secret {name} needs no change"));
            }
            if self.run.secrets.update(&name, &stored, &change).await? {
                return Ok(format!("renewed {} in the Secret {name}", change.file_names()));
            }
        }
        Err(too_many_changes(&name))
    }

    fn due_changes(&self, namespace: &str, stored: &StoredSecret) -> SecretChange {
        let mut change = SecretChange { files: self.certificate.clone(), ..SecretChange::default() };
        change.files.retain(|file, text| stored.file(file) != text);
        if !self.has_valid_token(namespace, stored) {
            change.files.insert(CLIENT_TOKEN.to_owned(), self.token(namespace));
        }
        change
    }

    fn has_valid_token(&self, namespace: &str, stored: &StoredSecret) -> bool {
        let (now_s, lifetime_s) = (self.run.now_s, self.run.settings.token_lifetime_s);
        self.secret.check(stored.file(CLIENT_TOKEN), now_s).is_some_and(|claims| {
            let is_due = is_token_due(claims.expires_s, lifetime_s, now_s);
            !is_due && claims == Claims { expires_s: claims.expires_s, ..self.claims(namespace) }
        })
    }

    fn files(&self, namespace: &str) -> SecretFiles {
        let mut files = self.certificate.clone();
        files.insert(CLIENT_TOKEN.to_owned(), self.token(namespace));
        files
    }

    fn token(&self, namespace: &str) -> String {
        self.secret.issuer().issue(&self.claims(namespace))
    }

    fn claims(&self, namespace: &str) -> Claims {
        Claims {
            holder: format!("clients in namespace {namespace}"),
            scopes: self.copies.scopes.clone(),
            tenant: self.copies.tenant.clone(),
            expires_s: self.run.token_expiry_s(),
        }
    }
}
