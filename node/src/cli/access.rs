//! Flags for certificates, tokens and the cluster's secret.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Credentials that this process presents to servers.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// PEM file with the certificate authorities to trust for https:// addresses [default: the system's authorities].
    #[arg(long, global = true, value_name = "FILE", env = "FEEDLINE_TLS_CA", hide_env_values = true)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// PEM file with this process's certificate and its intermediate certificates.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "FEEDLINE_TLS_CERT",
        hide_env_values = true,
        requires = "tls_key"
    )]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM file with the private key of --tls-cert.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "FEEDLINE_TLS_KEY",
        hide_env_values = true,
        requires = "tls_cert"
    )]
    pub(crate) tls_key: Option<PathBuf>,
    /// File with the token for the cluster [default: the token in FEEDLINE_TOKEN, or in the file that
    /// FEEDLINE_TOKEN_FILE names].
    // Without `env`, because a token in the environment takes precedence over a file in the environment.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// Which clients a server accepts.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
#[command(next_help_heading = "Access")]
pub(crate) struct ServerAccessArgs {
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    /// Clients to accept when --tls-cert and --tls-ca are given.
    #[arg(long, value_enum, value_name = "WHO", default_value_t)]
    pub(crate) tls_clients: ClientAuthArg,
    /// Accept every client that reaches the address, without TLS or without authentication: only for networks on which
    /// everyone may read all data and cancel all jobs. Without this flag, only loopback addresses accept every client.
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// The clients that a TLS server accepts.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ClientAuthArg {
    /// Clients with a certificate from an authority in --tls-ca.
    #[default]
    Certified,
    /// All clients; tokens authenticate them.
    Any,
}

/// The secret that the coordinators of a cluster share.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
#[command(next_help_heading = "Access")]
pub(crate) struct SecretArgs {
    /// File with the cluster's secret, which all its coordinators share. With a secret, every client needs a token from
    /// `feedline keys token` [default: no tokens].
    #[arg(long, value_name = "FILE", env = "FEEDLINE_SECRET_FILE", hide_env_values = true)]
    pub(crate) secret_file: Option<PathBuf>,
}
