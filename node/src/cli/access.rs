//! Flags that say who this process is, whom it trusts and whom it serves.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// What is shown to whom one connects to.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// Authorities in PEM whose certificates are trusted on https:// addresses [default: those of the system].
    #[arg(long, global = true, value_name = "FILE", env = "FEEDLINE_TLS_CA", hide_env_values = true)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Certificate of this process in PEM, with those between it and the authority.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "FEEDLINE_TLS_CERT",
        hide_env_values = true,
        requires = "tls_key"
    )]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key in PEM.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "FEEDLINE_TLS_KEY",
        hide_env_values = true,
        requires = "tls_cert"
    )]
    pub(crate) tls_key: Option<PathBuf>,
    /// File of the token that the cluster asks for [default: FEEDLINE_TOKEN, or the file in FEEDLINE_TOKEN_FILE].
    // Not by clap, to which a file in the environment is as good as one on the command line.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// Who is served.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
#[command(next_help_heading = "Access")]
pub(crate) struct GuardArgs {
    /// What is shown to others.
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    /// Who may connect where --tls-cert and --tls-ca are given.
    #[arg(long, value_enum, value_name = "WHO", default_value_t)]
    pub(crate) tls_clients: ClientsArg,
    /// Serve whoever reaches the address, without TLS or without asking who it is: for networks on which everybody may
    /// read all data and stop all jobs. Without it only loopback addresses are served so.
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// Who may connect.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ClientsArg {
    /// Only those with a certificate of an authority in --tls-ca.
    #[default]
    Certified,
    /// Everybody; tokens say who it is.
    Any,
}

/// What coordinators of a cluster share.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
#[command(next_help_heading = "Access")]
pub(crate) struct SecretArgs {
    /// File of the cluster's secret, the same for all its coordinators: whoever comes needs a token, which `feedline keys
    /// token` makes from it [default: no tokens are asked for].
    #[arg(long, value_name = "FILE", env = "FEEDLINE_SECRET_FILE", hide_env_values = true)]
    pub(crate) secret_file: Option<PathBuf>,
}
