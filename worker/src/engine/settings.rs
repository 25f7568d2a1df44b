//! How a worker runs the Python functions of its jobs, if it does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use feedline_functions::RowFunction;
use feedline_operators::BuiltOperator;

use crate::FunctionSettings;

/// With what a worker's jobs are run.
#[derive(Debug, Clone)]
pub(crate) struct EngineSettings {
    /// Threads that run operators.
    pub(crate) threads: u32,
    /// With what functions are run; `None` where they are not allowed.
    pub(crate) functions: Option<FunctionSettings>,
    /// Memory shared with the processes of functions.
    pub(crate) function_bytes: Arc<AtomicU64>,
}

impl EngineSettings {
    /// The functions among a job's operators, by place.
    ///
    /// # Errors
    /// One sentence where the worker does not allow them.
    pub(super) fn functions(
        &self,
        operators: &[BuiltOperator],
    ) -> Result<BTreeMap<usize, Arc<RowFunction>>, String> {
        let mut functions = BTreeMap::new();
        for (place, operator) in operators.iter().enumerate() {
            let Some(call) = &operator.function else { continue };
            let Some(settings) = &self.functions else {
                return Err(format!(
                    "operator {} ({}): this worker does not run users' code, and `{}` is that; start workers with \
                     `--functions on` where whoever may open jobs may run code on them",
                    place + 1,
                    operator.name,
                    call.function.function
                ));
            };
            let processes = operator.parallelism.unwrap_or(self.threads) as usize;
            let function =
                RowFunction::new(Arc::clone(call), settings.clone(), processes, &self.function_bytes);
            functions.insert(place, Arc::new(function));
        }
        Ok(functions)
    }
}
