//! The origins of a job's rows, shared by the job, its consumer and its batches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedline_client::origin::Origins;

/// Computes the origins of rows. `None` until the user requests the origins of a batch.
#[derive(Clone, Default)]
pub(crate) struct SharedOrigins(Arc<Mutex<Option<Origins>>>);

impl SharedOrigins {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Origins>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
