//! Python functions of a pipeline.

use feedline_data::pipeline::{ElementType, Function, FunctionEnvironment, FunctionOutput};

use super::{WireError, mirror};
use crate::wire;

mirror!(FunctionEnvironment, wire::FunctionEnvironment, { python, packages });

impl From<Function> for wire::Function {
    fn from(function: Function) -> Self {
        Self {
            function: function.function,
            code: function.code,
            path: function.path,
            version: function.version,
            columns: function.columns,
            outputs: function.outputs.into_iter().map(|(name, output)| (name, output.into())).collect(),
            environment: function.environment.map(Into::into),
            timeout_s: function.timeout_s,
            memory: function.memory,
            rows: function.rows,
            seeded: function.seeded,
        }
    }
}

impl TryFrom<wire::Function> for Function {
    type Error = WireError;

    fn try_from(function: wire::Function) -> Result<Self, WireError> {
        let outputs = function.outputs.into_iter().map(|(name, output)| Ok((name, output.try_into()?)));
        Ok(Self {
            function: function.function,
            code: function.code,
            path: function.path,
            version: function.version,
            columns: function.columns,
            outputs: outputs.collect::<Result<_, WireError>>()?,
            environment: function.environment.map(Into::into),
            timeout_s: function.timeout_s,
            memory: function.memory,
            rows: function.rows,
            seeded: function.seeded,
        })
    }
}

impl From<FunctionOutput> for wire::FunctionOutput {
    fn from(output: FunctionOutput) -> Self {
        Self { dtype: output.dtype.name().to_owned(), shape: output.shape, list: output.list }
    }
}

impl TryFrom<wire::FunctionOutput> for FunctionOutput {
    type Error = WireError;

    fn try_from(output: wire::FunctionOutput) -> Result<Self, WireError> {
        let dtype = ElementType::named(&output.dtype)
            .ok_or_else(|| WireError(format!("function.outputs: `{}` is no dtype", output.dtype)))?;
        Ok(Self { dtype, shape: output.shape, list: output.list })
    }
}
