//! Tests of the roles as a library, in the process of the test.

mod allocations;
mod batches;
mod pixels;
mod places;
