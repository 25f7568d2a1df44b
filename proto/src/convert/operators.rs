//! Operators of a pipeline.

use feedline_data::pipeline::{
    BatchParams, BucketByLength, Burn, Cache, Cast, CenterCrop, DecodeImage, Filter, FilterFunction,
    MapFunction, Normalize, Operator, OperatorKind, Pack, Pad, RandomHorizontalFlip, RandomResizedCrop,
    RecodeJpeg, Rename, Repeat, Resize, Select, Size, Tokenize, Truncate, Wait,
};

use super::{WireError, mirror, read_enum, required};
use crate::wire;
use crate::wire::operator::Kind;

mirror!(DecodeImage, wire::DecodeImage, { column });
mirror!(RandomHorizontalFlip, wire::RandomHorizontalFlip, { column, p });
mirror!(Select, wire::Select, { columns });
mirror!(Rename, wire::Rename, { columns });
mirror!(Filter, wire::Filter, { predicate });
mirror!(Tokenize, wire::Tokenize, { column, tokenizer, output, add_special_tokens });
mirror!(Truncate, wire::Truncate, { column, length });
mirror!(Pad, wire::Pad, { column, length, value });
mirror!(RecodeJpeg, wire::RecodeJpeg, { column });
mirror!(Repeat, wire::Repeat, { count });
mirror!(Burn, wire::Burn, { cpu_us });
mirror!(Wait, wire::Wait, { ms });

impl From<Operator> for wire::Operator {
    fn from(operator: Operator) -> Self {
        Self { parallelism: operator.parallelism, kind: Some(operator.kind.into()) }
    }
}

impl TryFrom<wire::Operator> for Operator {
    type Error = WireError;

    fn try_from(operator: wire::Operator) -> Result<Self, WireError> {
        let kind = required(operator.kind, "operator")?.try_into()?;
        Ok(Self { kind, parallelism: operator.parallelism })
    }
}

impl From<OperatorKind> for Kind {
    fn from(kind: OperatorKind) -> Self {
        match kind {
            OperatorKind::DecodeImage(p) => Self::DecodeImage(p.into()),
            OperatorKind::Resize(p) => Self::Resize(p.into()),
            OperatorKind::CenterCrop(p) => Self::CenterCrop(p.into()),
            OperatorKind::RandomResizedCrop(p) => Self::RandomResizedCrop(p.into()),
            OperatorKind::RandomHorizontalFlip(p) => Self::RandomHorizontalFlip(p.into()),
            OperatorKind::Normalize(p) => Self::Normalize(p.into()),
            OperatorKind::Cast(p) => Self::Cast(p.into()),
            OperatorKind::Select(p) => Self::Select(p.into()),
            OperatorKind::Rename(p) => Self::Rename(p.into()),
            OperatorKind::Filter(p) => Self::Filter(p.into()),
            OperatorKind::Tokenize(p) => Self::Tokenize(p.into()),
            OperatorKind::Truncate(p) => Self::Truncate(p.into()),
            OperatorKind::Pad(p) => Self::Pad(p.into()),
            OperatorKind::RecodeJpeg(p) => Self::RecodeJpeg(p.into()),
            OperatorKind::Cache(p) => Self::Cache(p.into()),
            OperatorKind::Batch(p) => Self::Batch(p.into()),
            OperatorKind::BucketByLength(p) => Self::BucketByLength(p.into()),
            OperatorKind::Pack(p) => Self::Pack(p.into()),
            OperatorKind::Repeat(p) => Self::Repeat(p.into()),
            OperatorKind::Burn(p) => Self::Burn(p.into()),
            OperatorKind::Wait(p) => Self::Wait(p.into()),
            OperatorKind::Map(p) => Self::Map(p.0.into()),
            OperatorKind::FilterFunction(p) => Self::FilterFunction(p.0.into()),
        }
    }
}

impl TryFrom<Kind> for OperatorKind {
    type Error = WireError;

    fn try_from(kind: Kind) -> Result<Self, WireError> {
        Ok(match kind {
            Kind::DecodeImage(p) => Self::DecodeImage(p.into()),
            Kind::Resize(p) => Self::Resize(p.try_into()?),
            Kind::CenterCrop(p) => Self::CenterCrop(p.try_into()?),
            Kind::RandomResizedCrop(p) => Self::RandomResizedCrop(p.try_into()?),
            Kind::RandomHorizontalFlip(p) => Self::RandomHorizontalFlip(p.into()),
            Kind::Normalize(p) => Self::Normalize(p.try_into()?),
            Kind::Cast(p) => Self::Cast(p.try_into()?),
            Kind::Select(p) => Self::Select(p.into()),
            Kind::Rename(p) => Self::Rename(p.into()),
            Kind::Filter(p) => Self::Filter(p.into()),
            Kind::Tokenize(p) => Self::Tokenize(p.into()),
            Kind::Truncate(p) => Self::Truncate(p.into()),
            Kind::Pad(p) => Self::Pad(p.into()),
            Kind::RecodeJpeg(p) => Self::RecodeJpeg(p.into()),
            Kind::Cache(p) => Self::Cache(p.try_into()?),
            Kind::Batch(p) => Self::Batch(p.try_into()?),
            Kind::BucketByLength(p) => Self::BucketByLength(p.try_into()?),
            Kind::Pack(p) => Self::Pack(p.try_into()?),
            Kind::Repeat(p) => Self::Repeat(p.into()),
            Kind::Burn(p) => Self::Burn(p.into()),
            Kind::Wait(p) => Self::Wait(p.into()),
            Kind::Map(p) => Self::Map(MapFunction(p.try_into()?)),
            Kind::FilterFunction(p) => Self::FilterFunction(FilterFunction(p.try_into()?)),
        })
    }
}

fn write_size([height, width]: Size) -> Option<wire::Size> {
    Some(wire::Size { height, width })
}

fn read_size(size: Option<wire::Size>, field: &str) -> Result<Size, WireError> {
    required(size, field).map(|size| [size.height, size.width])
}

fn write_bounds([low, high]: [f64; 2]) -> Option<wire::Bounds> {
    Some(wire::Bounds { low, high })
}

fn read_bounds(bounds: Option<wire::Bounds>, field: &str) -> Result<[f64; 2], WireError> {
    required(bounds, field).map(|bounds| [bounds.low, bounds.high])
}

impl From<Resize> for wire::Resize {
    fn from(resize: Resize) -> Self {
        Self { column: resize.column, size: write_size(resize.size) }
    }
}

impl TryFrom<wire::Resize> for Resize {
    type Error = WireError;

    fn try_from(resize: wire::Resize) -> Result<Self, WireError> {
        Ok(Self { column: resize.column, size: read_size(resize.size, "resize.size")? })
    }
}

impl From<CenterCrop> for wire::CenterCrop {
    fn from(crop: CenterCrop) -> Self {
        Self { column: crop.column, size: write_size(crop.size), resize: crop.resize }
    }
}

impl TryFrom<wire::CenterCrop> for CenterCrop {
    type Error = WireError;

    fn try_from(crop: wire::CenterCrop) -> Result<Self, WireError> {
        Ok(Self { column: crop.column, size: read_size(crop.size, "center_crop.size")?, resize: crop.resize })
    }
}

impl From<RandomResizedCrop> for wire::RandomResizedCrop {
    fn from(crop: RandomResizedCrop) -> Self {
        Self {
            column: crop.column,
            size: write_size(crop.size),
            scale: write_bounds(crop.scale),
            ratio: write_bounds(crop.ratio),
        }
    }
}

impl TryFrom<wire::RandomResizedCrop> for RandomResizedCrop {
    type Error = WireError;

    fn try_from(crop: wire::RandomResizedCrop) -> Result<Self, WireError> {
        Ok(Self {
            column: crop.column,
            size: read_size(crop.size, "random_resized_crop.size")?,
            scale: read_bounds(crop.scale, "random_resized_crop.scale")?,
            ratio: read_bounds(crop.ratio, "random_resized_crop.ratio")?,
        })
    }
}

impl From<Normalize> for wire::Normalize {
    fn from(normalize: Normalize) -> Self {
        Self {
            column: normalize.column,
            mean: normalize.mean,
            std: normalize.std,
            dtype: wire::ScalarType::from(normalize.dtype).into(),
            layout: wire::AxisOrder::from(normalize.layout).into(),
        }
    }
}

impl TryFrom<wire::Normalize> for Normalize {
    type Error = WireError;

    fn try_from(normalize: wire::Normalize) -> Result<Self, WireError> {
        Ok(Self {
            column: normalize.column,
            mean: normalize.mean,
            std: normalize.std,
            dtype: read_enum::<wire::ScalarType, _>(normalize.dtype, "normalize.dtype")?,
            layout: read_enum::<wire::AxisOrder, _>(normalize.layout, "normalize.layout")?,
        })
    }
}

impl From<Cast> for wire::Cast {
    fn from(cast: Cast) -> Self {
        Self { column: cast.column, dtype: wire::ScalarType::from(cast.dtype).into() }
    }
}

impl TryFrom<wire::Cast> for Cast {
    type Error = WireError;

    fn try_from(cast: wire::Cast) -> Result<Self, WireError> {
        Ok(Self { column: cast.column, dtype: read_enum::<wire::ScalarType, _>(cast.dtype, "cast.dtype")? })
    }
}

impl From<Cache> for wire::Cache {
    fn from(cache: Cache) -> Self {
        Self { tier: wire::CacheTier::from(cache.tier).into() }
    }
}

impl TryFrom<wire::Cache> for Cache {
    type Error = WireError;

    fn try_from(cache: wire::Cache) -> Result<Self, WireError> {
        Ok(Self { tier: read_enum::<wire::CacheTier, _>(cache.tier, "cache.tier")? })
    }
}

impl From<BatchParams> for wire::Batch {
    fn from(batch: BatchParams) -> Self {
        Self { size: batch.size, remainder: wire::Remainder::from(batch.remainder).into() }
    }
}

impl TryFrom<wire::Batch> for BatchParams {
    type Error = WireError;

    fn try_from(batch: wire::Batch) -> Result<Self, WireError> {
        Ok(Self {
            size: batch.size,
            remainder: read_enum::<wire::Remainder, _>(batch.remainder, "batch.remainder")?,
        })
    }
}

impl From<BucketByLength> for wire::BucketByLength {
    fn from(bucket: BucketByLength) -> Self {
        let BucketByLength { columns, boundaries, batch_sizes, tokens, pad, value, window } = bucket;
        Self { columns, boundaries, batch_sizes, tokens, pad: wire::PadTo::from(pad).into(), value, window }
    }
}

impl TryFrom<wire::BucketByLength> for BucketByLength {
    type Error = WireError;

    fn try_from(bucket: wire::BucketByLength) -> Result<Self, WireError> {
        let pad = read_enum::<wire::PadTo, _>(bucket.pad, "bucket_by_length.pad")?;
        let wire::BucketByLength { columns, boundaries, batch_sizes, tokens, value, window, .. } = bucket;
        Ok(Self { columns, boundaries, batch_sizes, tokens, pad, value, window })
    }
}

impl From<Pack> for wire::Pack {
    fn from(pack: Pack) -> Self {
        let Pack { columns, length, size, longer, value, window } = pack;
        Self { columns, length, size, longer: wire::Longer::from(longer).into(), value, window }
    }
}

impl TryFrom<wire::Pack> for Pack {
    type Error = WireError;

    fn try_from(pack: wire::Pack) -> Result<Self, WireError> {
        let longer = read_enum::<wire::Longer, _>(pack.longer, "pack.longer")?;
        let wire::Pack { columns, length, size, value, window, .. } = pack;
        Ok(Self { columns, length, size, longer, value, window })
    }
}
