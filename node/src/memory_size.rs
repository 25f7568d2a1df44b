//! The value of `--memory`: a size, or a percentage of the available memory.

use crate::size::parse_bytes;

/// A size in bytes, or a percentage of the memory limit of the container, or of the machine's memory without a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemorySize {
    /// Bytes.
    Bytes(u64),
    /// Percent, from 1 to 100.
    Percent(u32),
}

/// Parses a size such as `4GiB`, or a percentage such as `70%`. Returns a message on failure.
pub(crate) fn parse_memory_size(text: &str) -> Result<MemorySize, String> {
    let Some(percent) = text.trim().strip_suffix('%') else {
        return parse_bytes(text).map(MemorySize::Bytes);
    };
    match percent.trim_end().parse::<u32>() {
        Ok(percent @ 1..=100) => Ok(MemorySize::Percent(percent)),
        _ => {
            Err(format!("invalid percentage `{text}`: expected a whole number from 1% to 100%, such as 70%"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_and_a_percentage_are_accepted() {
        assert_eq!(parse_memory_size("4GiB"), Ok(MemorySize::Bytes(4 << 30)));
        assert_eq!(parse_memory_size("70%"), Ok(MemorySize::Percent(70)));
        assert_eq!(parse_memory_size(" 100 %"), Ok(MemorySize::Percent(100)));
        for wrong in ["%", "0%", "101%", "7.5%", "-1%", "70%%", "4GiB%"] {
            let error = parse_memory_size(wrong).unwrap_err();
            assert!(error.contains("such as 70%"), "{error}");
        }
        assert!(parse_memory_size("lots").unwrap_err().contains("such as 4GiB"));
    }
}
