//! An external sort of text with numbers. Text that does not fit in memory is sorted in runs, which are then merged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::GraphError;

/// Size of the buffers of a run.
const RUN_BUFFER_BYTES: usize = 1 << 16;

/// Sorts text with numbers: by the text, and then by the number.
#[derive(Debug)]
pub(super) struct TextSorter {
    folder: PathBuf,
    memory_bytes: usize,
    /// The text in memory, without separators.
    text: Vec<u8>,
    entries: Vec<TextEntry>,
    runs: Vec<PathBuf>,
}

/// A text in memory.
#[derive(Debug, Clone, Copy)]
struct TextEntry {
    start: usize,
    length: u32,
    number: u64,
}

impl TextSorter {
    /// Creates a sorter that uses about `memory_bytes`, and stores runs in a folder.
    pub(super) fn new(folder: &Path, memory_bytes: u64) -> Self {
        let memory_bytes = usize::try_from(memory_bytes).unwrap_or(usize::MAX);
        let folder = folder.to_owned();
        Self { folder, memory_bytes, text: Vec::new(), entries: Vec::new(), runs: Vec::new() }
    }

    /// Adds a text.
    pub(super) fn push(&mut self, text: &str, number: u64) -> Result<(), GraphError> {
        let length = u32::try_from(text.len())
            .map_err(|_| GraphError::Setting("an id has more than 4 GiB: use shorter ids".to_owned()))?;
        self.entries.push(TextEntry { start: self.text.len(), length, number });
        self.text.extend_from_slice(text.as_bytes());
        if self.text.len() + self.entries.len() * size_of::<TextEntry>() >= self.memory_bytes {
            self.write_run()?;
        }
        Ok(())
    }

    fn sort(&mut self) {
        let text = &self.text;
        let of = |entry: &TextEntry| &text[entry.start..entry.start + entry.length as usize];
        self.entries.sort_unstable_by(|left, right| {
            of(left).cmp(of(right)).then_with(|| left.number.cmp(&right.number))
        });
    }

    fn write_run(&mut self) -> Result<(), GraphError> {
        self.sort();
        let path = self.folder.join(format!("text-{}", self.runs.len()));
        let written = File::create_new(&path).and_then(|file| {
            let mut writer = BufWriter::with_capacity(RUN_BUFFER_BYTES, file);
            for entry in &self.entries {
                writer.write_all(&entry.length.to_le_bytes())?;
                writer.write_all(&entry.number.to_le_bytes())?;
                writer.write_all(&self.text[entry.start..entry.start + entry.length as usize])?;
            }
            writer.flush()
        });
        written.map_err(|error| GraphError::io("write", &path, &error))?;
        self.runs.push(path);
        self.text.clear();
        self.entries.clear();
        Ok(())
    }

    /// Returns all texts in order.
    pub(super) fn finish(mut self) -> Result<SortedTexts, GraphError> {
        self.write_run()?;
        self.text = Vec::new();
        self.entries = Vec::new();
        let mut sorted = SortedTexts { readers: Vec::new(), heads: BinaryHeap::new() };
        for path in std::mem::take(&mut self.runs) {
            let file = File::open(&path).map_err(|error| GraphError::io("open", &path, &error))?;
            // The open file keeps its contents.
            std::fs::remove_file(&path).map_err(|error| GraphError::io("remove", &path, &error))?;
            let file = BufReader::with_capacity(RUN_BUFFER_BYTES, file);
            sorted.readers.push(TextRun { file, path });
            sorted.advance(sorted.readers.len() - 1, Vec::new())?;
        }
        Ok(sorted)
    }
}

/// Texts in order.
#[derive(Debug)]
pub(super) struct SortedTexts {
    readers: Vec<TextRun>,
    /// The next text of each run, with its number and the run.
    heads: BinaryHeap<Reverse<(Vec<u8>, u64, usize)>>,
}

#[derive(Debug)]
struct TextRun {
    file: BufReader<File>,
    path: PathBuf,
}

impl SortedTexts {
    /// Replaces the contents of `text` by the next text, and returns its number.
    pub(super) fn next(&mut self, text: &mut Vec<u8>) -> Result<Option<u64>, GraphError> {
        let Some(Reverse((next, number, run))) = self.heads.pop() else { return Ok(None) };
        let spare = std::mem::replace(text, next);
        self.advance(run, spare)?;
        Ok(Some(number))
    }

    /// Reads the next text of a run into `spare`.
    fn advance(&mut self, run: usize, mut spare: Vec<u8>) -> Result<(), GraphError> {
        let reader = &mut self.readers[run];
        match reader.read(&mut spare) {
            Ok(Some(number)) => self.heads.push(Reverse((spare, number, run))),
            Ok(None) => {}
            Err(error) => return Err(GraphError::io("read", &reader.path, &error)),
        }
        Ok(())
    }
}

impl TextRun {
    fn read(&mut self, text: &mut Vec<u8>) -> std::io::Result<Option<u64>> {
        let mut length = [0; 4];
        match self.file.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut number = [0; 8];
        self.file.read_exact(&mut number)?;
        text.resize(u32::from_le_bytes(length) as usize, 0);
        self.file.read_exact(text)?;
        Ok(Some(u64::from_le_bytes(number)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn texts_are_sorted_for_any_memory(
            mut texts in prop::collection::vec(("[a-c]{0,3}", 0_u64..9), 0..200), memory_bytes in 1_u64..3_000,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut sorter = TextSorter::new(folder.path(), memory_bytes.max(64));
            for (text, number) in &texts {
                sorter.push(text, *number).unwrap();
            }
            let mut sorted = sorter.finish().unwrap();
            let (mut found, mut text) = (Vec::new(), Vec::new());
            while let Some(number) = sorted.next(&mut text).unwrap() {
                found.push((String::from_utf8(text.clone()).unwrap(), number));
            }
            texts.sort();
            prop_assert_eq!(found, texts);
            prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
}
