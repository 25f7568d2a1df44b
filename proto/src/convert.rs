//! Conversion between the types of `core` and protobuf messages. Received messages are checked: a missing or unknown value
//! is an error, never a panic.

mod allocations;
mod cluster;
mod compression;
pub(crate) mod dataset;
pub(crate) mod fetch;
mod history;
mod list_pages;
mod pipeline;
mod reports;
mod stores;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

/// The reason why a message cannot be decoded, as one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
#[allow(
    unreachable_pub,
    reason = "the error of a conversion must be as visible as the types that it converts"
)]
pub struct WireError(pub(crate) String);

/// A value with a protobuf form of type `W`: a message, or a field of a message.
pub(crate) trait Wire<W>: Sized {
    /// Writes the value.
    fn into_wire(self) -> W;

    /// Reads the value. `field` is its name in error messages, such as `job.pipeline`.
    fn from_wire(value: W, field: &str) -> Result<Self, WireError>;
}

/// Returns the value of a required field.
pub(crate) fn required<T>(value: Option<T>, field: &str) -> Result<T, WireError> {
    value.ok_or_else(|| {
        WireError(format!(
            "the message has no field `{field}`, or this release does not support its value; use the same release on both sides"
        ))
    })
}

/// Implements `Wire` for types that protobuf messages use too.
macro_rules! identical {
    ($($type:ty),*) => {
        $(impl Wire<$type> for $type {
            fn into_wire(self) -> $type {
                self
            }

            fn from_wire(value: $type, _: &str) -> Result<Self, WireError> {
                Ok(value)
            }
        })*
    };
}

identical!(i32, u32, u64, f64, bool, String, BTreeMap<String, String>);

impl Wire<Vec<String>> for BTreeSet<String> {
    fn into_wire(self) -> Vec<String> {
        self.into_iter().collect()
    }

    fn from_wire(names: Vec<String>, _: &str) -> Result<Self, WireError> {
        Ok(names.into_iter().collect())
    }
}

/// Implements `Wire` for the unit value and messages without fields.
macro_rules! empty {
    ($($message:ident),*) => {
        $(impl $crate::convert::Wire<$crate::wire::$message> for () {
            fn into_wire(self) -> $crate::wire::$message {
                $crate::wire::$message {}
            }

            fn from_wire(_: $crate::wire::$message, _: &str) -> Result<Self, $crate::convert::WireError> {
                Ok(())
            }
        })*
    };
}

/// Implements `Wire` for a struct and the message with the same name and fields. `name` is the prefix of field names in
/// error messages. `check` validates a received value.
macro_rules! message {
    ($type:ident, $name:literal, { $($field:ident),* $(,)? } $(, check: $check:expr)?) => {
        impl $crate::convert::Wire<$crate::wire::$type> for $type {
            fn into_wire(self) -> $crate::wire::$type {
                $crate::wire::$type { $($field: $crate::convert::Wire::into_wire(self.$field)),* }
            }

            fn from_wire(
                message: $crate::wire::$type,
                _: &str,
            ) -> Result<Self, $crate::convert::WireError> {
                let value = Self {
                    $($field: $crate::convert::Wire::from_wire(
                        message.$field,
                        concat!($name, ".", stringify!($field)),
                    )?),*
                };
                $(let value = $check(value)?;)?
                Ok(value)
            }
        }

        $crate::convert::field!($type, $type);
    };
}

/// Implements `Wire` for a tuple and a message with one field for each element.
macro_rules! tuple {
    (($($type:ty),+) => $message:ident { $($field:ident),+ }) => {
        impl $crate::convert::Wire<$crate::wire::$message> for ($($type,)+) {
            fn into_wire(self) -> $crate::wire::$message {
                let ($($field,)+) = self;
                $crate::wire::$message { $($field: $crate::convert::Wire::into_wire($field)),+ }
            }

            fn from_wire(
                message: $crate::wire::$message,
                _: &str,
            ) -> Result<Self, $crate::convert::WireError> {
                Ok(($($crate::convert::Wire::from_wire(
                    message.$field,
                    concat!(stringify!($message), ".", stringify!($field)),
                )?,)+))
            }
        }
    };
}

/// Implements `Wire` for a type and a message whose only field contains a value of the type.
macro_rules! wrapper {
    ($type:ty => $message:ident { $field:ident }) => {
        impl $crate::convert::Wire<$crate::wire::$message> for $type {
            fn into_wire(self) -> $crate::wire::$message {
                $crate::wire::$message { $field: $crate::convert::Wire::into_wire(self) }
            }

            fn from_wire(
                message: $crate::wire::$message,
                field: &str,
            ) -> Result<Self, $crate::convert::WireError> {
                $crate::convert::Wire::from_wire(message.$field, field)
            }
        }
    };
}

/// Implements `Wire` for a type whose message is a required field of another message.
macro_rules! field {
    ($type:ty, $message:ident) => {
        impl $crate::convert::Wire<Option<$crate::wire::$message>> for $type {
            fn into_wire(self) -> Option<$crate::wire::$message> {
                Some($crate::convert::Wire::into_wire(self))
            }

            fn from_wire(
                message: Option<$crate::wire::$message>,
                field: &str,
            ) -> Result<Self, $crate::convert::WireError> {
                $crate::convert::Wire::from_wire($crate::convert::required(message, field)?, field)
            }
        }
    };
}

/// Implements `Wire` for an enum without data and the protobuf enum with the same name and variants. Rejects
/// `Unspecified`.
macro_rules! enumeration {
    ($type:ident, { $($variant:ident),* $(,)? }) => {
        impl $crate::convert::Wire<i32> for $type {
            fn into_wire(self) -> i32 {
                match self {
                    $(Self::$variant => $crate::wire::$type::$variant.into(),)*
                }
            }

            fn from_wire(number: i32, field: &str) -> Result<Self, $crate::convert::WireError> {
                match $crate::wire::$type::try_from(number) {
                    $(Ok($crate::wire::$type::$variant) => Ok(Self::$variant),)*
                    Ok($crate::wire::$type::Unspecified) | Err(_) => $crate::convert::required(None, field),
                }
            }
        }
    };
}

/// Implements `Wire` for structs that contain one number.
macro_rules! id {
    ($($type:ident),*) => {
        $(impl $crate::convert::Wire<u64> for $type {
            fn into_wire(self) -> u64 {
                self.0
            }

            fn from_wire(value: u64, _: &str) -> Result<Self, $crate::convert::WireError> {
                Ok(Self(value))
            }
        })*
    };
}

/// Implements `Wire` for parts of the growth of unbounded jobs, which have the form of positions.
macro_rules! json {
    ($($type:ident),*) => {
        $(impl $crate::convert::Wire<$crate::wire::RecordedGrowth> for $type {
            fn into_wire(self) -> $crate::wire::RecordedGrowth {
                let json = serde_json::to_vec(&self)
                    .expect("the growth consists of text, numbers, lists and maps with text keys");
                $crate::wire::RecordedGrowth { json: json.into() }
            }

            fn from_wire(
                message: $crate::wire::RecordedGrowth,
                field: &str,
            ) -> Result<Self, $crate::convert::WireError> {
                serde_json::from_slice(&message.json).map_err(|error| {
                    $crate::convert::WireError(format!(
                        "cannot read `{field}`: {error}; use the same release on both sides"
                    ))
                })
            }
        })*
    };
}

pub(crate) use {empty, enumeration, field, id, json, message, tuple, wrapper};

impl Wire<Bytes> for Vec<u8> {
    fn into_wire(self) -> Bytes {
        self.into()
    }

    fn from_wire(value: Bytes, _: &str) -> Result<Self, WireError> {
        Ok(value.into())
    }
}

impl<T: Wire<W>, W> Wire<Vec<W>> for Vec<T> {
    fn into_wire(self) -> Vec<W> {
        self.into_iter().map(T::into_wire).collect()
    }

    fn from_wire(values: Vec<W>, field: &str) -> Result<Self, WireError> {
        values.into_iter().map(|value| T::from_wire(value, field)).collect()
    }
}

impl<T: Wire<W>, W> Wire<Option<W>> for Option<T> {
    fn into_wire(self) -> Option<W> {
        self.map(T::into_wire)
    }

    fn from_wire(value: Option<W>, field: &str) -> Result<Self, WireError> {
        value.map(|value| T::from_wire(value, field)).transpose()
    }
}

impl<T: Wire<W>, W> Wire<W> for Box<T> {
    fn into_wire(self) -> W {
        T::into_wire(*self)
    }

    fn from_wire(value: W, field: &str) -> Result<Self, WireError> {
        T::from_wire(value, field).map(Self::new)
    }
}

/// The arguments of an RPC with one argument.
impl<T: Wire<W>, W> Wire<W> for (T,) {
    fn into_wire(self) -> W {
        T::into_wire(self.0)
    }

    fn from_wire(value: W, field: &str) -> Result<Self, WireError> {
        T::from_wire(value, field).map(|value| (value,))
    }
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
