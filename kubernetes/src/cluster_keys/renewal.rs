//! Finds the files of a Secret that are to be renewed, and issues new ones.

use feedline_access::certificate_contains_host;
use feedline_access::key_files::{
    AUTHORITY_CERTIFICATE, AUTHORITY_KEY, CLIENT_CERTIFICATE, INITIAL_TOKENS, ROLE_CERTIFICATE, SECRET_FILE,
};

use super::lifetime::{authority_days, is_certificate_due, is_token_due};
use super::rotated_secret::{ROTATED_ANNOTATION, RotatedSecret};
use super::run::KeyRun;
use super::settings::KeySource;
use crate::secrets::{SecretChange, StoredSecret};

/// Returns the files of a complete Secret that are to be replaced.
pub(crate) async fn due_changes(run: &KeyRun<'_>, stored: &StoredSecret) -> Result<SecretChange, String> {
    let rotated = RotatedSecret::new(&run.settings.keys_name(), stored)?;
    let mut change = SecretChange::default();
    if run.settings.source == KeySource::All {
        renew_certificates(run, stored, &mut change).await?;
    }
    for token in INITIAL_TOKENS {
        let claims = rotated.check(stored.file(token.file), run.now_s);
        let lifetime_s = run.settings.token_lifetime_s;
        if claims.is_none_or(|claims| is_token_due(claims.expires_s, lifetime_s, run.now_s)) {
            change.files.insert(token.file.to_owned(), token.issue(rotated.issuer(), run.token_expiry_s()));
        }
    }
    if rotated.has_expired_previous(run.settings.token_lifetime_s, run.now_s) {
        change.files.insert(SECRET_FILE.to_owned(), rotated.without_previous() + "\n");
        change.annotations.insert(ROTATED_ANNOTATION, None);
    }
    Ok(change)
}

/// Renews certificates that expire soon or that lack a host, with the key of the authority.
async fn renew_certificates(
    run: &KeyRun<'_>,
    stored: &StoredSecret,
    change: &mut SecretChange,
) -> Result<(), String> {
    let days = run.settings.days;
    let is_due = |file: &str, days: u32| is_certificate_due(stored.file(file), days, run.now_s);
    let contains_host = |host: &String| certificate_contains_host(stored.file(ROLE_CERTIFICATE[0]), host);
    let is_authority_due = is_due(AUTHORITY_CERTIFICATE, authority_days(days));
    let mut due = [ROLE_CERTIFICATE, CLIENT_CERTIFICATE].to_vec();
    due.retain(|files| {
        is_due(files[0], days)
            || (*files == ROLE_CERTIFICATE && !run.settings.hosts.iter().all(contains_host))
    });
    if due.is_empty() && !is_authority_due {
        return Ok(());
    }
    let (keys, name) = (run.settings.keys_name(), run.settings.authority_name());
    let Some(authority) = run.secrets.read(&name).await? else {
        return Err(format!(
            "cannot renew the certificates in the Secret {keys}, because the Secret {name} with the key of their authority does not \
             exist: create it from the file {AUTHORITY_KEY} of `feedline keys new`, or delete the Secret {keys} to create new keys"
        ));
    };
    let authority = run.load_authority(&name, &authority)?;
    if !authority.has_key_of(stored.file(AUTHORITY_CERTIFICATE)) {
        return Err(format!(
            "cannot renew the certificates in the Secret {keys}, because the Secret {name} contains the key of another authority: \
             restore the key of {AUTHORITY_CERTIFICATE}, or delete both Secrets to create new keys"
        ));
    }
    if is_authority_due {
        change.files.insert(AUTHORITY_CERTIFICATE.to_owned(), authority.certified_key().cert.clone());
    }
    for files in due {
        change.files.extend(run.issue(&authority, files)?);
    }
    Ok(())
}
