//! The services through real loopback connections.
