//! Kubernetes: a scaler that sets the sizes of worker pools, and Secrets with the keys of a cluster.
