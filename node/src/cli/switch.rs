//! The value of flags that turn something on or off.

use clap::ValueEnum;

/// Whether something is done.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SwitchArg {
    /// It is.
    #[default]
    On,
    /// It is not.
    Off,
}

impl SwitchArg {
    /// Whether it is [`SwitchArg::On`].
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }
}
