//! `feedline keys apply`: the keys of a cluster in Secrets of Kubernetes.

use std::time::Duration;

use clap::{Args, ValueEnum};
use feedline_access::now_s;
use feedline_access::token::{Claims, Scope};
use feedline_kubernetes::{
    ClientCopies, ClusterKeySettings, KeySource, apply_cluster_keys, connect, rotate_cluster_secret,
};

use super::expiry::{Expiry, parse_expiry};
use crate::failure::Failure;
use crate::output;

/// Maximum time of all requests to the API server.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Arguments of `feedline keys apply`.
#[derive(Args, Debug, Clone)]
pub(crate) struct ApplyArgs {
    /// Name of the Secret with the keys. The command creates it if it does not exist, and never replaces a complete Secret.
    #[arg(long, value_name = "NAME")]
    secret: String,
    /// Name of the Secret with the private key of the certificate authority, which no pod mounts [default: NAME-ca].
    #[arg(long, value_name = "NAME")]
    ca_secret: Option<String>,
    /// Namespace of the cluster [default: the namespace of this pod, or of the kubeconfig].
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Keys that the command creates and renews.
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    source: KeySourceArg,
    /// Host names and addresses of coordinators and workers. The certificate is renewed if it lacks one of them. Required
    /// for `--source all`.
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',')]
    host: Vec<String>,
    /// Validity of the certificates in days. They are renewed when less than a third of it remains.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Validity of the tokens, such as 90d; `never` creates tokens that do not expire. Tokens are renewed when less than a
    /// third of it remains.
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = parse_expiry)]
    expires: Expiry,
    /// Labels of created Secrets.
    #[arg(long, value_name = "KEY=VALUE,KEY=VALUE", value_delimiter = ',', value_parser = parse_label)]
    label: Vec<(String, String)>,
    /// Namespaces that receive a Secret with the CA, a client certificate and a token; the flag can be repeated.
    #[arg(long, value_name = "NAMESPACE,NAMESPACE", value_delimiter = ',')]
    copy_to: Vec<String>,
    /// Name of the Secret in these namespaces.
    #[arg(long, value_name = "NAME", default_value = "feedline-client")]
    copy_name: String,
    /// Scopes of the copied token, as for `feedline keys token`.
    #[arg(long, value_name = "SCOPE,SCOPE", value_delimiter = ',', default_value = "consume")]
    copy_scope: Vec<Scope>,
    /// Tenant that the copied token is restricted to [default: all tenants].
    #[arg(long, value_name = "NAME")]
    copy_tenant: Option<String>,
    /// Secret of type kubernetes.io/tls with the client certificate to copy [default: the Secret of --secret].
    #[arg(long, value_name = "NAME")]
    copy_certificate: Option<String>,
    /// Only replace the secret of the cluster. The previous secret remains valid. Later runs renew the tokens, and remove the
    /// previous secret when its tokens have expired.
    #[arg(long, conflicts_with_all = ["copy_to", "source", "host"])]
    rotate_secret: bool,
}

/// The keys that the command creates and renews.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
enum KeySourceArg {
    /// Certificates, the secret and tokens.
    #[default]
    All,
    /// The secret and tokens. Another program, such as cert-manager, creates the certificates.
    Tokens,
    /// None. The Secret must exist and contain all files of `feedline keys new`.
    Existing,
}

/// Runs the command.
pub(crate) async fn run(args: ApplyArgs) -> Result<(), Failure> {
    if args.source == KeySourceArg::All && args.host.is_empty() && !args.rotate_secret {
        return Err(Failure::invalid_usage(
            "--source all needs the names in the certificate: pass --host HOST,HOST",
        ));
    }
    let client = connect().await.map_err(Failure::failed)?;
    let rotates = args.rotate_secret;
    let settings = settings(args, client.default_namespace())?;
    let mut report = Vec::new();
    let applied = tokio::time::timeout(TIMEOUT, async {
        if rotates {
            let sentence = rotate_cluster_secret(&client, &settings, now_s()).await?;
            report.push(sentence);
            return Ok(());
        }
        apply_cluster_keys(&client, &settings, now_s(), &mut report).await
    })
    .await;
    let lines: String = report.iter().map(|sentence| format!("{sentence}\n")).collect();
    output::print(&lines)?;
    match applied {
        Ok(applied) => applied.map_err(Failure::failed),
        Err(_) => Err(Failure::failed(format!(
            "the API server of Kubernetes did not answer within {} s; run the command again",
            TIMEOUT.as_secs()
        ))),
    }
}

fn settings(args: ApplyArgs, default_namespace: &str) -> Result<ClusterKeySettings, Failure> {
    let copies = ClientCopies {
        namespaces: args.copy_to,
        name: args.copy_name,
        scopes: args.copy_scope.into_iter().collect(),
        tenant: args.copy_tenant,
        certificate_secret: args.copy_certificate,
    };
    let claims = Claims {
        holder: String::new(),
        scopes: copies.scopes.clone(),
        tenant: copies.tenant.clone(),
        expires_s: None,
    };
    claims.check().map_err(|problem| Failure::invalid_usage(format!("--copy-scope: {problem}")))?;
    Ok(ClusterKeySettings {
        namespace: args.namespace.unwrap_or_else(|| default_namespace.to_owned()),
        authority_secret: args.ca_secret.unwrap_or_else(|| format!("{}-ca", args.secret)),
        secret: args.secret,
        source: match args.source {
            KeySourceArg::All => KeySource::All,
            KeySourceArg::Tokens => KeySource::Tokens,
            KeySourceArg::Existing => KeySource::Existing,
        },
        hosts: args.host,
        days: args.days,
        token_lifetime_s: args.expires.lifetime_s(),
        labels: args.label.into_iter().collect(),
        copies: (!copies.namespaces.is_empty()).then_some(copies),
    })
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("invalid label `{text}`: expected KEY=VALUE, such as team=vision")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct ApplyCommand {
        #[command(flatten)]
        args: ApplyArgs,
    }

    fn parse(flags: &[&str]) -> Result<ApplyArgs, String> {
        let flags = ["apply", "--secret", "demo-keys"].iter().chain(flags);
        ApplyCommand::try_parse_from(flags).map(|parsed| parsed.args).map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_of_the_chart_are_accepted() {
        let flags = [
            "--ca-secret=demo-ca",
            "--source=all",
            "--host=demo.ml.svc,10.0.0.7",
            "--days=90",
            "--expires=never",
            "--label=a=b,c=",
            "--copy-to=team-a,team-b",
            "--copy-name=keys",
            "--copy-scope=submit,consume",
            "--copy-tenant=vision",
            "--copy-certificate=demo-tls",
        ];
        let parsed = settings(parse(&flags).unwrap(), "ml").unwrap();
        assert_eq!((parsed.namespace.as_str(), parsed.authority_secret.as_str()), ("ml", "demo-ca"));
        assert_eq!((parsed.days, parsed.token_lifetime_s), (90, None));
        assert_eq!(parsed.hosts, ["demo.ml.svc", "10.0.0.7"]);
        assert_eq!(parsed.labels["a"], "b");
        assert_eq!(parsed.labels["c"], "");
        let copies = parsed.copies.unwrap();
        assert_eq!(copies.namespaces, ["team-a", "team-b"]);
        assert_eq!(copies.scopes, [Scope::Submit, Scope::Consume].into());
        assert_eq!(copies.certificate_secret.as_deref(), Some("demo-tls"));
        let defaults = settings(parse(&["--copy-to=a", "--copy-to=b"]).unwrap(), "ml").unwrap();
        assert_eq!(defaults.authority_secret, "demo-keys-ca");
        assert_eq!(defaults.token_lifetime_s, Some(365 * 86_400));
        assert_eq!(defaults.copies.unwrap().namespaces, ["a", "b"]);
        assert!(settings(parse(&[]).unwrap(), "ml").unwrap().copies.is_none());
    }

    #[test]
    fn flags_that_contradict_each_other_are_rejected() {
        let wide = parse(&["--copy-to=a", "--copy-scope=work", "--copy-tenant=vision"]).unwrap();
        let error = settings(wide, "ml").unwrap_err().to_string();
        assert!(error.starts_with("--copy-scope: a token for tenant `vision` cannot have"), "{error}");
        assert!(parse(&["--rotate-secret", "--copy-to=a"]).unwrap_err().contains("cannot be used with"));
        assert!(parse(&["--rotate-secret"]).is_ok());
        assert!(parse(&["--label=a"]).unwrap_err().contains("invalid label `a`: expected KEY=VALUE"));
    }

    #[tokio::test]
    async fn certificates_need_a_host() {
        let error = run(parse(&[]).unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("pass --host HOST,HOST"), "{error}");
    }
}
