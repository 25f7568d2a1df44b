//! Settings for building the operators of jobs, including Python functions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use feedline_functions::RowFunction;
use feedline_operators::BuiltOperator;

use super::loaded_graph::GraphLoader;
use crate::FunctionSettings;

/// Settings for building the operators of jobs.
#[derive(Debug, Clone)]
pub(crate) struct EngineSettings {
    /// Number of threads that run operators.
    pub(crate) threads: u32,
    /// Settings of the processes that run Python functions. `None` if the worker does not run Python functions.
    pub(crate) functions: Option<FunctionSettings>,
    /// Bytes of memory that the worker shares with these processes.
    pub(crate) function_bytes: Arc<AtomicU64>,
    /// Provides the graphs that jobs sample. `None` if the worker does not sample graphs.
    pub(crate) graphs: Option<Arc<dyn GraphLoader>>,
}

impl EngineSettings {
    /// Builds the Python functions of a job, by operator index.
    ///
    /// # Errors
    /// Returns a message if the job has Python functions and the worker does not run them.
    pub(crate) fn build_functions(
        &self,
        operators: &[BuiltOperator],
    ) -> Result<BTreeMap<usize, Arc<RowFunction>>, String> {
        let mut functions = BTreeMap::new();
        for (index, operator) in operators.iter().enumerate() {
            let Some(call) = &operator.function else { continue };
            let Some(settings) = &self.functions else {
                return Err(format!(
                    "operator {} ({}): this worker does not run Python functions such as `{}`; start workers with \
                     `--functions on` if everyone who may open jobs may also run code on the workers",
                    index + 1,
                    operator.name,
                    call.function.function
                ));
            };
            let processes = operator.parallelism.unwrap_or(self.threads) as usize;
            let function =
                RowFunction::new(Arc::clone(call), settings.clone(), processes, &self.function_bytes);
            functions.insert(index, Arc::new(function));
        }
        Ok(functions)
    }
}
