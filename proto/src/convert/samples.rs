//! Values of every message, for tests.
