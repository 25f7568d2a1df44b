//! Reads line-aligned text files of a directory, such as `corpus.train.en` and `corpus.train.de`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;

use super::rows::RowSource;
use super::text::text_schema;

/// Number of rows in memory at a time.
const BATCH_ROWS: u64 = 8192;

/// Files with the same name except for the extension. Each file is a column, named by its extension (`en` comes first).
/// The lines repeat if more rows are requested.
pub(super) struct TextFolder {
    columns: Vec<TextColumn>,
    rows: u64,
}

struct TextColumn {
    name: String,
    path: PathBuf,
    lines: Lines<BufReader<File>>,
}

impl TextFolder {
    /// Opens a directory. Without `rows`, each line is one row.
    pub(super) fn open(folder: &Path, rows: Option<u64>) -> Result<Self> {
        let mut columns = Vec::new();
        for (name, path) in aligned_files(folder)? {
            columns.push((count_lines(&path)?, TextColumn { name, lines: open_lines(&path)?, path }));
        }
        let (lines, first) = (columns[0].0, &columns[0].1.path);
        for (count, column) in &columns {
            ensure!(
                *count == lines,
                "{} has {count} lines, but {} has {lines}: parallel files need the same number of lines",
                column.path.display(),
                first.display()
            );
        }
        ensure!(lines > 0, "{} is empty: add a line", first.display());
        let columns = columns.into_iter().map(|(_, column)| column).collect();
        Ok(Self { columns, rows: rows.unwrap_or(lines) })
    }
}

impl RowSource for TextFolder {
    fn schema(&self) -> SchemaRef {
        text_schema(self.columns.iter().map(|column| column.name.as_str()))
    }

    fn count(&self) -> u64 {
        self.rows
    }

    fn batch_rows(&self) -> u64 {
        BATCH_ROWS
    }

    fn read(&mut self, range: Range<u64>) -> Result<RecordBatch> {
        let schema = self.schema();
        let mut arrays: Vec<ArrayRef> = Vec::new();
        for column in &mut self.columns {
            let lines: Vec<String> = range.clone().map(|_| column.next_line()).collect::<Result<_>>()?;
            arrays.push(Arc::new(StringArray::from(lines)));
        }
        Ok(RecordBatch::try_new(schema, arrays)?)
    }
}

impl TextColumn {
    fn next_line(&mut self) -> Result<String> {
        let failed = || format!("cannot read {}", self.path.display());
        if let Some(line) = self.lines.next() {
            return line.with_context(failed);
        }
        self.lines = open_lines(&self.path)?;
        self.lines
            .next()
            .transpose()
            .with_context(failed)?
            .with_context(|| format!("{} became empty while it was read", self.path.display()))
    }
}

/// Returns the largest group of files whose names differ only in the extension. If several groups are equally large,
/// the name must contain `train`.
fn aligned_files(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let failed = || format!("cannot list {}", folder.display());
    let mut groups: BTreeMap<String, Vec<(String, PathBuf)>> = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some((stem, extension)) = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty())
            && path.is_file()
        {
            groups.entry(stem.into()).or_default().push((extension.into(), path.clone()));
        }
    }
    let most = groups.values().map(Vec::len).max().unwrap_or(0);
    groups.retain(|_, files| files.len() == most);
    if groups.len() > 1 {
        groups.retain(|stem, _| stem.split('.').any(|part| part == "train"));
    }
    let mut groups = groups.into_values();
    match (groups.next(), groups.next()) {
        (Some(mut files), None) => {
            files.sort_by_key(|(extension, _)| (extension != "en", extension.clone()));
            Ok(files)
        }
        _ => bail!(
            "cannot select files in {}: expected one group of files, such as NAME.en and NAME.de, or NAME.train.en and NAME.train.de",
            folder.display()
        ),
    }
}

fn open_lines(path: &Path) -> Result<Lines<BufReader<File>>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(BufReader::with_capacity(1 << 20, file).lines())
}

fn count_lines(path: &Path) -> Result<u64> {
    let mut count = 0;
    for line in open_lines(path)? {
        line.with_context(|| format!("cannot read line {} of {}", count + 1, path.display()))?;
        count += 1;
    }
    Ok(count)
}
