//! Kubernetes: a scaler that sets the sizes of worker pools, and Secrets with the keys of a cluster.

mod api_client;
mod cluster_keys;
mod secrets;

pub use self::api_client::connect;
pub use self::cluster_keys::{
    ClientCopies, ClusterKeySettings, KeySource, apply_cluster_keys, rotate_cluster_secret,
};
