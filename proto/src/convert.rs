//! Conversions between `core`'s types and wire types. What comes from the wire is checked: a missing or unknown field
//! gives one sentence, never a panic.

mod cluster;
pub(crate) mod dataset;
mod fetch;
mod pipeline;
mod places;
mod reports;
mod status;
mod view;

/// Why a message could not be read: one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
#[allow(unreachable_pub, reason = "a conversion's error must be as visible as the types it converts")]
pub struct WireError(pub(crate) String);

/// The value of a field that must be there.
pub(crate) fn required<T>(value: Option<T>, field: &str) -> Result<T, WireError> {
    value.ok_or_else(|| {
        WireError(format!(
            "the message has no `{field}`, or one that this release does not know; use the same release on both sides"
        ))
    })
}

/// Reads a field that must be there.
fn read<W, C: TryFrom<W, Error = WireError>>(value: Option<W>, field: &str) -> Result<C, WireError> {
    required(value, field)?.try_into()
}

/// Reads a field that may be absent.
fn read_optional<W, C: TryFrom<W, Error = WireError>>(value: Option<W>) -> Result<Option<C>, WireError> {
    value.map(C::try_from).transpose()
}

/// Reads a list.
fn read_all<W, C: TryFrom<W, Error = WireError>>(values: Vec<W>) -> Result<Vec<C>, WireError> {
    values.into_iter().map(C::try_from).collect()
}

/// Reads an enum's number: through the wire's enum into `core`'s.
fn read_enum<W: TryFrom<i32>, C: TryFrom<W, Error = WireError>>(
    number: i32,
    field: &str,
) -> Result<C, WireError> {
    required(W::try_from(number).ok(), field)?.try_into()
}

/// Converts every element of a list.
fn all<A, B: From<A>>(values: Vec<A>) -> Vec<B> {
    values.into_iter().map(B::from).collect()
}

/// Both directions for a message whose fields have the same names and types as `core`'s.
macro_rules! mirror {
    ($core:ty, $wire:ty, { $($field:ident),* $(,)? }) => {
        impl From<$core> for $wire {
            fn from(value: $core) -> Self {
                Self { $($field: value.$field),* }
            }
        }

        impl From<$wire> for $core {
            fn from(value: $wire) -> Self {
                Self { $($field: value.$field),* }
            }
        }
    };
}

/// Both directions for an enum whose variants have the same names; the wire's `Unspecified` is refused.
macro_rules! mirror_enum {
    ($core:ty, $wire:ty, $field:literal, { $($variant:ident),* $(,)? }) => {
        impl From<$core> for $wire {
            fn from(value: $core) -> Self {
                match value {
                    $(<$core>::$variant => Self::$variant,)*
                }
            }
        }

        impl TryFrom<$wire> for $core {
            type Error = crate::convert::WireError;

            fn try_from(value: $wire) -> Result<Self, Self::Error> {
                match value {
                    <$wire>::Unspecified => crate::convert::required(None, $field),
                    $(<$wire>::$variant => Ok(Self::$variant),)*
                }
            }
        }
    };
}

use {mirror, mirror_enum};

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
