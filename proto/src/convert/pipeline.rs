//! Pipelines, their sources and schemas. A pipeline travels as the JSON of its own serde form.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use feedline_data::pipeline::{
    CacheEncoding, CacheTier, Format, Mix, MixPart, MixStop, OrderMode, PIPELINE_VERSION, Pipeline,
    Remainder, Source,
};
use feedline_data::schema::{ColumnType, Field, ScalarType, Schema};

use super::{WireError, all, mirror_enum, read, read_all, read_enum, read_optional, required};
use crate::wire;

mirror_enum!(ScalarType, wire::ScalarType, "dtype", {
    Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32, Float64,
});
mirror_enum!(Format, wire::Format, "source.format", {
    TfRecord, WebDataset, Files, Parquet, Arrow, Jsonl, Csv, Text, Npy,
});
mirror_enum!(OrderMode, wire::OrderMode, "order", { Deterministic, Relaxed });
mirror_enum!(CacheTier, wire::CacheTier, "cache.tier", { Memory, Disk, Store });
mirror_enum!(CacheEncoding, wire::KeptForm, "form", { AsIs, Indexed, Pixels });
mirror_enum!(MixStop, wire::MixStop, "source.stop", { All, First, Restart });
mirror_enum!(Remainder, wire::Remainder, "remainder", { Emit, Drop, Carry });

impl From<Pipeline> for wire::Pipeline {
    fn from(mut pipeline: Pipeline) -> Self {
        let codes = adopt_function_code(&mut pipeline);
        let json = serde_json::to_vec(&pipeline)
            .expect("a pipeline consists of text, numbers, lists and maps with text keys");
        Self { version: PIPELINE_VERSION, json: json.into(), codes }
    }
}

impl TryFrom<wire::Pipeline> for Pipeline {
    type Error = WireError;

    fn try_from(message: wire::Pipeline) -> Result<Self, WireError> {
        if message.version != PIPELINE_VERSION {
            return Err(WireError(format!(
                "the pipeline has version {}, this release reads version {PIPELINE_VERSION}; use the same release on both sides",
                message.version
            )));
        }
        let mut pipeline: Self = serde_json::from_slice(&message.json).map_err(|error| {
            WireError(format!("cannot read the pipeline: {error}; use the same release on both sides"))
        })?;
        for code in message.codes {
            put_code(&mut pipeline, code)?;
        }
        Ok(pipeline)
    }
}

/// Moves pickled functions out of the definition, as bytes. Text that is not the base64 of any bytes stays, so that the
/// check of the pipeline reports it.
fn adopt_function_code(pipeline: &mut Pipeline) -> Vec<wire::FunctionCode> {
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

fn put_code(pipeline: &mut Pipeline, code: wire::FunctionCode) -> Result<(), WireError> {
    let operator = pipeline.operators.get_mut(code.operator as usize);
    let function = operator.and_then(|operator| operator.kind.definition_mut().function_mut());
    let function = function.ok_or_else(|| {
        WireError(format!(
            "the pipeline has code for operator {}, which calls no function",
            u64::from(code.operator) + 1
        ))
    })?;
    function.code = Some(STANDARD.encode(&code.code));
    Ok(())
}

impl From<Source> for wire::Source {
    fn from(source: Source) -> Self {
        Self {
            urls: source.url,
            // A mix has those of its datasets.
            format: wire::Format::from(source.format).into(),
            features: source.features,
            credentials: source.credentials,
            mix: source.mix.map(Into::into),
        }
    }
}

impl From<Mix> for wire::Mix {
    fn from(mix: Mix) -> Self {
        let part = |part: MixPart| wire::MixPart { weight: part.weight, source: Some(part.source.into()) };
        Self { parts: mix.parts.into_iter().map(part).collect(), stop: wire::MixStop::from(mix.stop).into() }
    }
}

impl TryFrom<wire::Mix> for Mix {
    type Error = WireError;

    fn try_from(mix: wire::Mix) -> Result<Self, WireError> {
        let part = |part: wire::MixPart| {
            let source = required(part.source, "source.mix.source")?;
            // A mix in a mix is refused by the check; here it would be read without an end.
            if source.mix.is_some() {
                return Err(WireError("a dataset of `source.mix` is itself a mix".to_owned()));
            }
            Ok(MixPart { weight: part.weight, source: source.try_into()? })
        };
        Ok(Self {
            parts: mix.parts.into_iter().map(part).collect::<Result<_, _>>()?,
            stop: read_enum::<wire::MixStop, _>(mix.stop, "source.stop")?,
        })
    }
}

impl TryFrom<wire::Source> for Source {
    type Error = WireError;

    fn try_from(source: wire::Source) -> Result<Self, WireError> {
        Ok(Self {
            url: source.urls,
            format: read_enum::<wire::Format, _>(source.format, "source.format")?,
            features: source.features,
            credentials: source.credentials,
            mix: read_optional(source.mix)?,
        })
    }
}

impl From<Schema> for wire::Schema {
    fn from(schema: Schema) -> Self {
        Self { fields: all(schema.fields) }
    }
}

impl TryFrom<wire::Schema> for Schema {
    type Error = WireError;

    fn try_from(schema: wire::Schema) -> Result<Self, WireError> {
        Ok(Self { fields: read_all(schema.fields)? })
    }
}

impl From<Field> for wire::Field {
    fn from(field: Field) -> Self {
        Self { name: field.name, r#type: Some(field.column_type.into()) }
    }
}

impl TryFrom<wire::Field> for Field {
    type Error = WireError;

    fn try_from(field: wire::Field) -> Result<Self, WireError> {
        Ok(Self { name: field.name, column_type: read(field.r#type, "field.type")? })
    }
}

impl From<ColumnType> for wire::ColumnType {
    fn from(column_type: ColumnType) -> Self {
        use wire::column_type::Type;
        let wire_type = match column_type {
            ColumnType::Scalar(scalar) => Type::Scalar(wire::ScalarType::from(scalar).into()),
            ColumnType::Utf8 => Type::Utf8(wire::Plain {}),
            ColumnType::Binary => Type::Binary(wire::Plain {}),
            ColumnType::List(inner) => Type::List(Box::new((*inner).into())),
            ColumnType::Image => Type::Image(wire::Plain {}),
            ColumnType::Tensor { scalar, shape } => {
                Type::Tensor(wire::Tensor { scalar: wire::ScalarType::from(scalar).into(), shape })
            }
        };
        Self { r#type: Some(wire_type) }
    }
}

impl TryFrom<wire::ColumnType> for ColumnType {
    type Error = WireError;

    fn try_from(column_type: wire::ColumnType) -> Result<Self, WireError> {
        use wire::column_type::Type;
        Ok(match required(column_type.r#type, "field.type")? {
            Type::Scalar(scalar) => {
                Self::Scalar(read_enum::<wire::ScalarType, _>(scalar, "field.type.scalar")?)
            }
            Type::Utf8(_) => Self::Utf8,
            Type::Binary(_) => Self::Binary,
            Type::List(inner) => Self::List(Box::new((*inner).try_into()?)),
            Type::Image(_) => Self::Image,
            Type::Tensor(tensor) => Self::Tensor {
                scalar: read_enum::<wire::ScalarType, _>(tensor.scalar, "field.type.tensor.scalar")?,
                shape: tensor.shape,
            },
        })
    }
}
