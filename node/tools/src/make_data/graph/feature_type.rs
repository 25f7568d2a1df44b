//! The types and formats of features.

use clap::ValueEnum;

/// The type of features.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::make_data) enum FeatureDtype {
    /// 16 bits.
    #[default]
    Float16,
    /// 32 bits.
    Float32,
}

/// The format of features.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::make_data) enum FeatureFileFormat {
    /// A NumPy array.
    #[default]
    Npy,
    /// Apache Parquet with one column of lists.
    Parquet,
}
