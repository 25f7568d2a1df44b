//! The value of flags that turn something on or off.

use clap::ValueEnum;

/// Whether a feature is enabled.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SwitchArg {
    /// Enabled.
    #[default]
    On,
    /// Disabled.
    Off,
}

impl SwitchArg {
    /// Whether the value is [`SwitchArg::On`].
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }
}
