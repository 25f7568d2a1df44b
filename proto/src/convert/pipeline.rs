//! Pipelines, their sources and schemas. A pipeline is sent as JSON, in its serde form.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use feedline_data::pipeline::{
    Format, KafkaOptions, Mix, MixPart, MixStop, OrderMode, PIPELINE_VERSION, Partitions, Pipeline,
    Remainder, Source,
};
use feedline_data::schema::{ColumnType, Field, ScalarType, Schema};
use feedline_data::shared_vec::SharedVec;

use super::{Wire, WireError, enumeration, field, message, required};
use crate::wire;

enumeration!(ScalarType, {
    Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32, Float64,
});
enumeration!(Format, {
    TfRecord, WebDataset, Files, Parquet, Arrow, Jsonl, Csv, Text, Npy, Npz, Mds, LitData, ArrayRecord, ImageFolder,
    HuggingFace, Kafka, Graph,
});
enumeration!(Partitions, { Hive });
enumeration!(OrderMode, { Deterministic, Relaxed });
enumeration!(MixStop, { All, First, Restart });
enumeration!(Remainder, { Emit, Drop, Carry });

message!(Source, "source", { url, format, features, optional, credentials, kafka, mix, compression, partitions, config, split, seeds, shard_filter, graph });
message!(MixPart, "source.mix", { weight, source });
message!(Mix, "source.mix", { parts, stop }, check: without_nested_mix);
message!(Schema, "schema", { fields });
message!(Field, "field", { name, column_type });

impl Wire<Vec<wire::Field>> for SharedVec<Field> {
    fn into_wire(self) -> Vec<wire::Field> {
        self.into_iter().map(Wire::into_wire).collect()
    }

    fn from_wire(fields: Vec<wire::Field>, field: &str) -> Result<Self, WireError> {
        let fields: Vec<Field> = Wire::from_wire(fields, field)?;
        Ok(fields.into())
    }
}

field!(Pipeline, Pipeline);
field!(ColumnType, ColumnType);

/// Rejects a nested mix. The validation of a pipeline also rejects nested mixes.
fn without_nested_mix(mix: Mix) -> Result<Mix, WireError> {
    match mix.parts.iter().any(|part| part.source.mix.is_some()) {
        true => Err(WireError("a dataset of `source.mix` is itself a mix".to_owned())),
        false => Ok(mix),
    }
}

impl Wire<wire::Pipeline> for Pipeline {
    fn into_wire(mut self) -> wire::Pipeline {
        let codes = take_function_codes(&mut self);
        let json = serde_json::to_vec(&self)
            .expect("a pipeline consists of text, numbers, lists and maps with text keys");
        wire::Pipeline { version: PIPELINE_VERSION, json: json.into(), codes }
    }

    fn from_wire(message: wire::Pipeline, _: &str) -> Result<Self, WireError> {
        if message.version != PIPELINE_VERSION {
            return Err(WireError(format!(
                "the pipeline has version {}, but this release reads version {PIPELINE_VERSION}; use the same release on both sides",
                message.version
            )));
        }
        let mut pipeline: Self = serde_json::from_slice(&message.json).map_err(|error| {
            WireError(format!("cannot read the pipeline: {error}; use the same release on both sides"))
        })?;
        for code in message.codes {
            insert_code(&mut pipeline, code)?;
        }
        Ok(pipeline)
    }
}

/// Moves pickled functions out of the definition, as bytes. Text that is not valid base64 is kept, so that the validation
/// of the pipeline reports it.
fn take_function_codes(pipeline: &mut Pipeline) -> Vec<wire::FunctionCode> {
    let mut codes = Vec::new();
    for (index, operator) in pipeline.operators.iter_mut().enumerate() {
        let Some(function) = operator.kind.definition_mut().function_mut() else { continue };
        let bytes = function.code.as_ref().and_then(|text| STANDARD.decode(text).ok());
        if let Some(code) = bytes {
            function.code = None;
            codes.push(wire::FunctionCode { operator: index as u32, code: code.into() });
        }
    }
    codes
}

fn insert_code(pipeline: &mut Pipeline, code: wire::FunctionCode) -> Result<(), WireError> {
    let operator = pipeline.operators.get_mut(code.operator as usize);
    let function = operator.and_then(|operator| operator.kind.definition_mut().function_mut());
    let function = function.ok_or_else(|| {
        WireError(format!(
            "the pipeline contains code for operator {}, which does not call a function",
            u64::from(code.operator) + 1
        ))
    })?;
    function.code = Some(STANDARD.encode(&code.code));
    Ok(())
}

/// The settings of a Kafka source have the form of the pipeline file.
impl Wire<wire::KafkaOptions> for KafkaOptions {
    fn into_wire(self) -> wire::KafkaOptions {
        let json = serde_json::to_vec(&self)
            .expect("the settings consist of text, numbers, lists and maps with text keys");
        wire::KafkaOptions { json: json.into() }
    }

    fn from_wire(message: wire::KafkaOptions, field: &str) -> Result<Self, WireError> {
        serde_json::from_slice(&message.json).map_err(|error| {
            WireError(format!("cannot read `{field}`: {error}; use the same release on both sides"))
        })
    }
}

impl Wire<wire::ColumnType> for ColumnType {
    fn into_wire(self) -> wire::ColumnType {
        use wire::column_type::Type;
        let column_type = match self {
            Self::Scalar(scalar) => Type::Scalar(scalar.into_wire()),
            Self::Utf8 => Type::Utf8(wire::Empty {}),
            Self::Binary => Type::Binary(wire::Empty {}),
            Self::List(inner) => Type::List(Box::new(inner.into_wire())),
            Self::Image => Type::Image(wire::Empty {}),
            Self::Tensor { scalar, shape } => {
                Type::Tensor(wire::Tensor { scalar: scalar.into_wire(), shape })
            }
        };
        wire::ColumnType { r#type: Some(column_type) }
    }

    fn from_wire(message: wire::ColumnType, field: &str) -> Result<Self, WireError> {
        use wire::column_type::Type;
        Ok(match required(message.r#type, field)? {
            Type::Scalar(scalar) => Self::Scalar(Wire::from_wire(scalar, field)?),
            Type::Utf8(_) => Self::Utf8,
            Type::Binary(_) => Self::Binary,
            Type::List(inner) => Self::List(Wire::from_wire(*inner, field)?),
            Type::Image(_) => Self::Image,
            Type::Tensor(wire::Tensor { scalar, shape }) => {
                Self::Tensor { scalar: Wire::from_wire(scalar, field)?, shape }
            }
        })
    }
}
