//! `feedline keys`: creates the certificates, the secret and the tokens of a protected cluster.

mod apply;
mod expiry;

use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use feedline_access::key_files::INITIAL_TOKENS;
use feedline_access::token::{Claims, Scope, Tokens};
use feedline_access::{CertificateAuthority, Secret, warn_if_exposed};
use feedline_common::files::{FileAccess, replace_file};

use self::apply::ApplyArgs;
use self::expiry::{Expiry, parse_expiry};
use crate::access::read_secret;
use crate::failure::{Failure, reason};
use crate::output;

/// Arguments of `feedline keys`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline keys new keys --host feedline.example.org,10.0.0.1,10.0.0.7\n  \
    feedline keys token --secret-file keys/secret --scope submit,consume --tenant vision --expires 30d\n  \
    feedline keys apply --namespace ml --secret feedline-keys --host feedline.ml.svc --copy-to team-a")]
pub(crate) struct KeysArgs {
    /// The action.
    #[command(subcommand)]
    action: KeysAction,
}

#[derive(Subcommand, Debug, Clone)]
enum KeysAction {
    /// Creates a secret, a certificate authority, certificates and tokens in a new directory.
    New(NewArgs),
    /// Renews or adds a certificate in a directory that `feedline keys new` created; running roles load it within
    /// seconds.
    Cert(CertArgs),
    /// Prints a new token.
    Token(TokenArgs),
    /// Creates missing keys in Secrets of Kubernetes, renews old ones under the same certificate authority, and copies keys
    /// to the namespaces of clients. Prints the changes.
    Apply(Box<ApplyArgs>),
    /// Prints a new secret. While a cluster's secret is being replaced, a secret file may contain two secrets; the
    /// first one signs new tokens.
    Secret,
}

#[derive(Args, Debug, Clone)]
struct NewArgs {
    /// Directory to create; it must not exist.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Host names and addresses of coordinators and workers.
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',', default_value = "localhost,127.0.0.1,::1")]
    host: Vec<String>,
    /// Validity of the certificates in days.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Validity of the tokens, such as 90d; `never` creates tokens that do not expire.
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = parse_expiry)]
    expires: Expiry,
}

#[derive(Args, Debug, Clone)]
struct CertArgs {
    /// Directory that `feedline keys new` created.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Base name of the files NAME.pem and NAME-key.pem.
    #[arg(long, value_name = "NAME", default_value = "role")]
    name: String,
    /// Host names and addresses of coordinators and workers.
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',', default_value = "localhost,127.0.0.1,::1")]
    host: Vec<String>,
    /// Validity of the certificate in days.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

#[derive(Args, Debug, Clone)]
struct TokenArgs {
    /// File that contains the secret of the cluster.
    #[arg(long, value_name = "FILE", env = "FEEDLINE_SECRET_FILE", hide_env_values = true)]
    secret_file: PathBuf,
    /// Scopes: submit (open and cancel jobs), consume (receive rows of open jobs), work (run a worker), observe (read the
    /// state of jobs and the cluster), admin (add and remove coordinators).
    #[arg(long, value_name = "SCOPE,SCOPE", value_delimiter = ',', required = true)]
    scope: Vec<Scope>,
    /// Tenant that the token is restricted to [default: all tenants].
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Name of the token's holder, for logs.
    #[arg(long, value_name = "NAME", default_value = "unnamed")]
    holder: String,
    /// Validity of the token, such as 30d; `never` creates a token that does not expire.
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = parse_expiry)]
    expires: Expiry,
}

/// Runs one action.
pub(crate) async fn run(args: KeysArgs) -> Result<(), Failure> {
    match args.action {
        KeysAction::New(args) => create_all(&args),
        KeysAction::Cert(args) => create_certificate(&args),
        KeysAction::Token(args) => create_token(args),
        KeysAction::Apply(args) => apply::run(*args).await,
        KeysAction::Secret => {
            let secret = Secret::new().map_err(Failure::failed)?;
            Ok(output::print(&format!("{}\n", secret.text()))?)
        }
    }
}

fn create_token(args: TokenArgs) -> Result<(), Failure> {
    let tokens = Tokens::new(&read_secret(&args.secret_file)?);
    let claims = Claims {
        holder: args.holder,
        scopes: args.scope.into_iter().collect(),
        tenant: args.tenant,
        expires_s: args.expires.expires_s(),
    };
    claims.check().map_err(Failure::invalid_usage)?;
    // Print this to standard error, because users redirect the token to a file.
    eprintln!("feedline: the token of `{}` is {}", claims.holder, args.expires);
    Ok(output::print(&format!("{}\n", tokens.issue(&claims)))?)
}

fn create_all(args: &NewArgs) -> Result<(), Failure> {
    let folder = &args.folder;
    let secret = Secret::new().map_err(Failure::failed)?;
    let authority = CertificateAuthority::new(args.days).map_err(Failure::failed)?;
    let role = authority.issue("feedline role", &args.host, args.days).map_err(Failure::invalid_usage)?;
    let client = authority.issue("feedline client", &[], args.days).map_err(Failure::failed)?;
    DirBuilder::new().mode(0o700).create(folder).map_err(|error| {
        Failure::invalid_usage(format!(
            "cannot create the directory {}: {}; pass the path of a new directory in an existing directory",
            folder.display(),
            reason(&error)
        ))
    })?;
    let root = authority.certified_key();
    for (name, text) in [
        ("ca.pem", root.cert.clone()),
        ("ca-key.pem", root.key.clone()),
        ("role.pem", role.cert),
        ("role-key.pem", role.key),
        ("client.pem", client.cert),
        ("client-key.pem", client.key),
        ("secret", secret.text() + "\n"),
    ] {
        write_private_file(folder, name, &text)?;
    }
    let tokens = Tokens::new(&secret);
    for token in INITIAL_TOKENS {
        write_private_file(folder, token.file, &token.issue(&tokens, args.expires.expires_s()))?;
    }
    Ok(output::print(&summary(args))?)
}

fn create_certificate(args: &CertArgs) -> Result<(), Failure> {
    let CertArgs { folder, name, host, days } = args;
    if name.is_empty() || name.contains(['/', '.']) || name == "ca" {
        return Err(Failure::invalid_usage(format!(
            "invalid certificate name `{name}`: expected a name without `/` and `.` that is not `ca`, such as role"
        )));
    }
    let file = folder.join("ca-key.pem");
    let key = std::fs::read_to_string(&file).map_err(|error| {
        Failure::invalid_usage(format!(
            "cannot read {}: {}; create it with `feedline keys new`",
            file.display(),
            reason(&error)
        ))
    })?;
    warn_if_exposed("the authority's private key", &file);
    let invalid = |error: String| Failure::invalid_usage(format!("{}: {error}", file.display()));
    let authority = CertificateAuthority::from_key(&key, *days).map_err(invalid)?;
    let certificate =
        authority.issue(&format!("feedline {name}"), host, *days).map_err(Failure::invalid_usage)?;
    // Write the key first. A role that loads the files between both writes detects the mismatch and keeps its previous
    // files.
    write_private_file(folder, &format!("{name}-key.pem"), &certificate.key)?;
    write_private_file(folder, &format!("{name}.pem"), &certificate.cert)?;
    let folder = folder.display();
    Ok(output::print(&format!(
        "wrote {folder}/{name}.pem, valid for {days} days, for {}\n",
        host.join(", ")
    ))?)
}

/// Writes a file atomically and durably. Only its owner can read it.
fn write_private_file(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let path = folder.join(name);
    replace_file(&path, FileAccess::OwnerOnly, |file| file.write_all(text.as_bytes()))
        .map_err(|error| Failure::failed(format!("cannot write {}: {}", path.display(), reason(&error))))
}

fn summary(args: &NewArgs) -> String {
    let NewArgs { folder, host, days, expires } = args;
    let folder = folder.display();
    let hosts = host.join(", ");
    format!(
        "created cluster keys in {folder}; the certificates are valid for {days} days, for {hosts}\n\
         the tokens are {expires}\n\n\
         coordinators: --secret-file {folder}/secret --tls-ca {folder}/ca.pem --tls-cert {folder}/role.pem --tls-key {folder}/role-key.pem\n\
         workers:      --token-file {folder}/worker.token --tls-ca {folder}/ca.pem --tls-cert {folder}/role.pem --tls-key {folder}/role-key.pem\n\
         clients:      --token-file {folder}/client.token --tls-ca {folder}/ca.pem --tls-cert {folder}/client.pem --tls-key {folder}/client-key.pem\n\n\
         Keep ca-key.pem and secret where only administrators can read them; `feedline keys token` creates further tokens.\n"
    )
}
