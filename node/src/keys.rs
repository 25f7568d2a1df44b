//! `feedline keys`: what a cluster needs so that nobody else can use it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use feedline_access::token::{Claims, Scope, Tokens};
use feedline_access::{Authority, Secret, now_s, warn_if_exposed};

use crate::access::read_secret;
use crate::failure::{Failure, reason};
use crate::output;
use crate::size::parse_duration;

/// What `feedline keys` is asked for.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline keys new keys --host feedline.example.org,10.0.0.1,10.0.0.7\n  \
    feedline keys token --secret-file keys/secret --scope submit,consume --tenant vision --expires 30d")]
pub(crate) struct KeysArgs {
    /// What to make.
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug, Clone)]
enum What {
    /// Makes a secret, an authority with certificates, and tokens, in a new directory.
    New(NewArgs),
    /// Renews a certificate in such a directory, or makes a further one; roles that run use it within seconds.
    Cert(CertArgs),
    /// Prints a token.
    Token(TokenArgs),
    /// Prints a secret, to exchange a cluster's for it: a file of secrets may have two, of which the first signs.
    Secret,
}

/// Until when a token is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expiry {
    After(Duration),
    Never,
}

impl Expiry {
    /// Seconds since 1970, UTC.
    fn end_s(self) -> Option<u64> {
        match self {
            Self::After(time) => Some(now_s().saturating_add(time.as_secs())),
            Self::Never => None,
        }
    }
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(time) if time.as_secs() > 0 && time.as_secs().is_multiple_of(86_400) => {
                write!(f, "good for {} days", time.as_secs() / 86_400)
            }
            Self::After(time) => write!(f, "good for {} s", time.as_secs()),
            Self::Never => f.write_str(
                "good FOR EVER: only another secret of the cluster ends that, so tell nobody and leave none behind",
            ),
        }
    }
}

fn parse_expiry(text: &str) -> Result<Expiry, String> {
    if text.trim() == "never" {
        return Ok(Expiry::Never);
    }
    parse_duration(text).map(Expiry::After).map_err(|said| format!("{said}, or never"))
}

#[derive(Args, Debug, Clone)]
struct NewArgs {
    /// The directory, which must not exist yet.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Names and addresses of the hosts on which coordinators and workers listen.
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',', default_value = "localhost,127.0.0.1,::1")]
    host: Vec<String>,
    /// Days for which the certificates are good.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Time for which the tokens are good, such as 90d, or `never` for tokens without an end.
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = parse_expiry)]
    expires: Expiry,
}

#[derive(Args, Debug, Clone)]
struct CertArgs {
    /// The directory that `feedline keys new` made.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The certificate goes to NAME.pem and its key to NAME-key.pem there.
    #[arg(long, value_name = "NAME", default_value = "role")]
    name: String,
    /// Names and addresses of the hosts on which coordinators and workers listen with it.
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',', default_value = "localhost,127.0.0.1,::1")]
    host: Vec<String>,
    /// Days for which it is good.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

#[derive(Args, Debug, Clone)]
struct TokenArgs {
    /// The cluster's secret.
    #[arg(long, value_name = "FILE", env = "FEEDLINE_SECRET_FILE", hide_env_values = true)]
    secret_file: PathBuf,
    /// What it allows: submit (open and cancel jobs), consume (take rows of open jobs), work (be a worker), observe (see
    /// jobs and the cluster), admin (add and remove coordinators).
    #[arg(long, value_name = "SCOPE,SCOPE", value_delimiter = ',', required = true)]
    scope: Vec<Scope>,
    /// Whose jobs it allows it with [default: those of all tenants].
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Who holds it, for logs.
    #[arg(long, value_name = "NAME", default_value = "unnamed")]
    holder: String,
    /// Time for which it is good, such as 30d, or `never` for a token without an end.
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = parse_expiry)]
    expires: Expiry,
}

/// Makes what is asked for.
pub(crate) fn run(args: KeysArgs) -> Result<(), Failure> {
    match args.what {
        What::New(args) => make_all(&args),
        What::Cert(args) => make_cert(&args),
        What::Token(args) => {
            let tokens = Tokens::new(&read_secret(&args.secret_file)?);
            let claims = Claims {
                holder: args.holder,
                scopes: args.scope.into_iter().collect(),
                tenant: args.tenant,
                expires_s: args.expires.end_s(),
            };
            claims.check().map_err(Failure::wrong_use)?;
            // Beside what is printed, which goes to a file.
            eprintln!("feedline: the token of `{}` is {}", claims.holder, args.expires);
            Ok(output::print(&format!("{}\n", tokens.make(&claims)))?)
        }
        What::Secret => {
            let secret = Secret::new().map_err(Failure::failed)?;
            Ok(output::print(&format!("{}\n", secret.text()))?)
        }
    }
}

fn make_all(args: &NewArgs) -> Result<(), Failure> {
    let folder = &args.folder;
    let secret = Secret::new().map_err(Failure::failed)?;
    let authority = Authority::new(args.days).map_err(Failure::failed)?;
    let role = authority.issue("feedline role", &args.host, args.days).map_err(Failure::wrong_use)?;
    let client = authority.issue("feedline client", &[], args.days).map_err(Failure::failed)?;
    let tokens = Tokens::new(&secret);
    let expires_s = args.expires.end_s();
    let token = |holder: &str, scopes: &[Scope]| {
        let scopes: BTreeSet<Scope> = scopes.iter().copied().collect();
        tokens.make(&Claims { holder: holder.to_owned(), scopes, tenant: None, expires_s }) + "\n"
    };
    DirBuilder::new().mode(0o700).create(folder).map_err(|error| {
        Failure::wrong_use(format!(
            "cannot make the directory {}: {}; name one that does not exist, in one that does",
            folder.display(),
            reason(&error)
        ))
    })?;
    let own = authority.certified();
    for (name, text) in [
        ("ca.pem", own.cert.clone()),
        ("ca-key.pem", own.key.clone()),
        ("role.pem", role.cert),
        ("role-key.pem", role.key),
        ("client.pem", client.cert),
        ("client-key.pem", client.key),
        ("secret", secret.text() + "\n"),
        ("worker.token", token("worker", &[Scope::Work])),
        ("client.token", token("client", &[Scope::Submit, Scope::Consume, Scope::Observe])),
        ("admin.token", token("admin", &[Scope::Admin, Scope::Observe, Scope::Submit])),
    ] {
        write(folder, name, &text)?;
    }
    Ok(output::print(&summary(args))?)
}

fn make_cert(args: &CertArgs) -> Result<(), Failure> {
    let CertArgs { folder, name, host, days } = args;
    if name.is_empty() || name.contains(['/', '.']) || name == "ca" {
        return Err(Failure::wrong_use(format!(
            "`{name}` is no name for a certificate; write one such as role"
        )));
    }
    let file = folder.join("ca-key.pem");
    let key = std::fs::read_to_string(&file).map_err(|error| {
        Failure::wrong_use(format!(
            "cannot read {}: {}; `feedline keys new` makes it",
            file.display(),
            reason(&error)
        ))
    })?;
    warn_if_exposed("the authority's private key", &file);
    let refused = |said: String| Failure::wrong_use(format!("{}: {said}", file.display()));
    let authority = Authority::of_key(&key).map_err(refused)?;
    let made = authority.issue(&format!("feedline {name}"), host, *days).map_err(Failure::wrong_use)?;
    // The key first: roles that read both in between see that they do not go together, and keep what they have.
    write(folder, &format!("{name}-key.pem"), &made.key)?;
    write(folder, &format!("{name}.pem"), &made.cert)?;
    let folder = folder.display();
    Ok(output::print(&format!("{folder}/{name}.pem is good for {days} days, for {}\n", host.join(", ")))?)
}

/// Writes a file that only its owner can read, at once.
fn write(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let place = folder.join(name);
    let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.persist(&place).map_err(|error| error.error)
    });
    written
        .map(|_| ())
        .map_err(|error| Failure::failed(format!("cannot write {}: {}", place.display(), reason(&error))))
}

fn summary(args: &NewArgs) -> String {
    let NewArgs { folder, host, days, expires } = args;
    let folder = folder.display();
    let hosts = host.join(", ");
    format!(
        "{folder} has what a cluster needs; certificates are good for {days} days, for {hosts}\n\
         its tokens are {expires}\n\n\
         coordinators: --secret-file {folder}/secret --tls-ca {folder}/ca.pem --tls-cert {folder}/role.pem --tls-key {folder}/role-key.pem\n\
         workers:      --token-file {folder}/worker.token --tls-ca {folder}/ca.pem --tls-cert {folder}/role.pem --tls-key {folder}/role-key.pem\n\
         clients:      --token-file {folder}/client.token --tls-ca {folder}/ca.pem --tls-cert {folder}/client.pem --tls-key {folder}/client-key.pem\n\n\
         Keep ca-key.pem and secret where only administrators can read them; `feedline keys token` makes further tokens.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_time_or_never_and_says_so() {
        for (text, expiry, says) in [
            ("365d", Expiry::After(Duration::from_secs(365 * 86_400)), "good for 365 days"),
            ("90 m", Expiry::After(Duration::from_secs(5_400)), "good for 5400 s"),
            ("never", Expiry::Never, "good FOR EVER"),
        ] {
            assert_eq!(parse_expiry(text), Ok(expiry));
            assert!(expiry.to_string().starts_with(says), "{expiry}");
        }
        assert!(parse_expiry("always").unwrap_err().ends_with("such as 10s, or never"));
        assert_eq!(Expiry::Never.end_s(), None);
        assert!(Expiry::After(Duration::from_secs(60)).end_s().is_some_and(|end| end > now_s()));
    }
}
