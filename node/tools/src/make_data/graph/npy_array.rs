//! Writes NumPy arrays whose shape is known in advance.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

use super::super::output::Output;

/// The alignment of the first element, as `numpy.save` writes it.
const ALIGNMENT: usize = 64;

/// An array in C order. Elements are written in order, or at any position.
pub(super) struct NpyArrayWriter {
    file: File,
    name: String,
    /// The position of the next bytes in order.
    next: u64,
    data_start: u64,
}

impl NpyArrayWriter {
    /// Creates a file. `descr` is the type, such as `<i8`.
    pub(super) fn create(output: &mut Output, name: &str, descr: &str, shape: &[u64]) -> Result<Self> {
        let file = output.create(name)?.into_inner().map_err(|error| error.into_error())?;
        Self::start(file, name, descr, shape)
    }

    fn start(file: File, name: &str, descr: &str, shape: &[u64]) -> Result<Self> {
        let header = header(descr, shape);
        let data_start = header.len() as u64;
        let mut array = Self { file, name: name.to_owned(), next: 0, data_start };
        array.append(&header)?;
        Ok(array)
    }

    /// Writes the next bytes.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_bytes(self.next, bytes)?;
        self.next += bytes.len() as u64;
        Ok(())
    }

    /// Writes bytes at an offset from the first element.
    pub(super) fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_bytes(self.data_start + offset, bytes)
    }

    fn write_bytes(&self, position: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, position).with_context(|| format!("cannot write {}", self.name))
    }
}

/// Returns the header of format version 1.0.
fn header(descr: &str, shape: &[u64]) -> Vec<u8> {
    let extents: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let text =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}{comma}), }}", extents.join(", "));
    // The magic bytes, the version, the length and the newline.
    let bytes = (10 + text.len() + 1).next_multiple_of(ALIGNMENT);
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend(((bytes - 10) as u16).to_le_bytes());
    header.extend(text.bytes());
    header.resize(bytes - 1, b' ');
    header.push(b'\n');
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_numpy() {
        let expected = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }";
        let found = header("<i8", &[5]);
        assert_eq!(found.len(), 128);
        assert!(found.starts_with(expected) && found.ends_with(b" \n"));
        assert!(String::from_utf8_lossy(&header("<f2", &[7, 30])).contains("'shape': (7, 30), }"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = NpyArrayWriter::start(full, "y.npy", "<i8", &[1]).err().unwrap();
        assert!(format!("{error:#}").starts_with("cannot write y.npy: No space left"), "{error:#}");
    }
}
