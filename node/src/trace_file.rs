//! Trace files: `feedline explain --save-trace` writes the costs of a pipeline, and `feedline plan` reads them.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use feedline_common::files::{FileAccess, replace_file};
use feedline_data::pipeline::Pipeline;
use feedline_planner::model::JobModel;
use feedline_planner::observe;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, reason};

/// Version of the file format.
const VERSION: u32 = 1;
/// Extension of a trace file next to its pipeline file.
const EXTENSION: &str = "trace.json";

/// The trace of a pipeline. Field names are the keys of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedTrace {
    /// Version of the file format.
    version: u32,
    /// The pipeline's name.
    pub(crate) name: String,
    /// Fingerprint of everything in the pipeline that affects its rows: [`Pipeline::fingerprint`].
    fingerprint: String,
    /// The pipeline in canonical form, without resolved paths.
    pipeline: String,
    /// Type of the traced worker, which states its cores and memory.
    pub(crate) worker_type: String,
    /// Rows delivered during the trace.
    rows: u64,
    /// Length of the trace in seconds.
    seconds: f64,
    /// Fingerprints of the dataset and of the operators up to each cache point of the model, in order.
    #[serde(rename = "cut_keys")]
    pub(crate) cache_point_keys: Vec<u64>,
    /// Costs per row on workers of type `worker_type`.
    pub(crate) model: JobModel,
}

/// The observations that a trace file contains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceInput<'a> {
    /// Type of the worker.
    pub(crate) worker_type: &'a str,
    /// Rows delivered during the trace.
    pub(crate) rows: u64,
    /// Length of the trace in seconds.
    pub(crate) seconds: f64,
    /// Costs per row.
    pub(crate) model: &'a JobModel,
}

impl SavedTrace {
    /// Creates the trace of a pipeline. `original` is the pipeline as written, `resolved` has absolute paths.
    pub(crate) fn new(original: &Pipeline, resolved: &Pipeline, input: TraceInput<'_>) -> Self {
        Self {
            version: VERSION,
            name: original.name.clone(),
            fingerprint: original.fingerprint(),
            pipeline: original.to_yaml(),
            worker_type: input.worker_type.to_owned(),
            rows: input.rows,
            seconds: input.seconds,
            cache_point_keys: observe::cache_point_keys(resolved, input.model),
            model: input.model.clone(),
        }
    }

    /// Writes the trace atomically.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(Failure::failed)?;
        write_atomically(path, &(text + "\n")).map_err(|error| {
            let path = path.display();
            Failure::failed(format!(
                "cannot write the trace {path}: {}; specify another path",
                reason(&error)
            ))
        })
    }

    /// Whether the pipeline reads the local disks of workers.
    pub(crate) fn reads_local_files(&self) -> Result<bool, String> {
        let pipeline = Pipeline::from_yaml(&self.pipeline, "its pipeline").map_err(|error| {
            format!(
                "cannot parse the pipeline in the trace of `{}`: {error}; create a new trace with `feedline explain FILE --save-trace`",
                self.name
            )
        })?;
        Ok(observe::reads_local_files(&pipeline))
    }

    /// Reads a trace file, or the trace next to a pipeline file.
    pub(crate) fn find(file: &Path) -> Result<Self, Failure> {
        let text = read(file, "pass the path of a pipeline file or trace")?;
        if text.trim_start().starts_with('{') {
            return Self::parse(&text, file);
        }
        let pipeline = crate::pipeline_file::read(file)?;
        let path = default_path(file);
        if !path.exists() {
            return Err(Failure::invalid_usage(format!(
                "the trace {} does not exist: create it with `feedline explain {file} --save-trace`",
                path.display(),
                file = file.display()
            )));
        }
        let trace = Self::parse(&read(&path, "change its permissions")?, &path)?;
        // The texts can differ, because another version of Feedline may have formatted the pipeline.
        if Pipeline::from_yaml(&trace.pipeline, "its pipeline").ok() != Some(pipeline) {
            return Err(Failure::invalid_usage(format!(
                "the trace {} is out of date, because {file} has changed since: create a new trace with \
                 `feedline explain {file} --save-trace`",
                path.display(),
                file = file.display()
            )));
        }
        Ok(trace)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, Failure> {
        let path = path.display();
        let fix = "create a new trace with `feedline explain FILE --save-trace`";
        let invalid = |error| Failure::invalid_usage(format!("invalid trace {path}: {error}; {fix}"));
        let value: serde_json::Value = serde_json::from_str(text).map_err(invalid)?;
        let version = value["version"].as_u64();
        if let Some(version) = version.filter(|version| *version != u64::from(VERSION)) {
            return Err(Failure::invalid_usage(format!(
                "the trace {path} has version {version}, but this release reads version {VERSION}; {fix}"
            )));
        }
        let trace: Self = serde_json::from_value(value).map_err(invalid)?;
        if trace.cache_point_keys.len() != trace.model.cache_points.len() {
            return Err(Failure::invalid_usage(format!(
                "invalid trace {path}: {} fingerprints for {} cache points; {fix}",
                trace.cache_point_keys.len(),
                trace.model.cache_points.len()
            )));
        }
        Ok(trace)
    }
}

/// Returns the default path of a trace: `a.trace.json` for `a.yaml`.
pub(crate) fn default_path(file: &Path) -> PathBuf {
    file.with_extension(EXTENSION)
}

/// Replaces the content of a file atomically. Follows symbolic links, and writes directly to special files such as pipes.
fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let target = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return fs::write(path, text),
        Ok(_) => fs::canonicalize(path)?,
        Err(_) => path.to_owned(),
    };
    replace_file(&target, FileAccess::Unchanged, |file| file.write_all(text.as_bytes()))
}

fn read(path: &Path, advice: &str) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| {
        Failure::invalid_usage(format!("cannot read {}: {}; {advice}", path.display(), reason(&error)))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use feedline_planner::model::{CachePointModel, OperatorModel};

    use super::*;

    const TEXT: &str = "name: photographs\nsource: {url: data/, format: tfrecord}\noperators:\n  \
        - burn: {cpu_us: 9}\n  - batch: {size: 4}\n";

    /// Returns a job whose operator `burn` takes `burn_ms` milliseconds per row on a traced core.
    pub(crate) fn model(burn_ms: f64) -> JobModel {
        let operator = |name: &str, cpu_ms: f64| OperatorModel {
            name: name.to_owned(),
            visit_ratio: 1.0,
            cpu_s: [("2 cores, 1.0 GiB".to_owned(), cpu_ms / 1e3)].into(),
            ..OperatorModel::default()
        };
        let cut = |operator_index: usize, operator: &str, bytes: f64| CachePointModel {
            operator_index,
            operator: operator.to_owned(),
            rows: 1e6,
            bytes,
            bytes_per_row: bytes / 1e6,
            is_cacheable: true,
            ..CachePointModel::default()
        };
        JobModel {
            rows_per_s: 900.0,
            operators: vec![operator("source", 0.2), operator("burn", burn_ms), operator("batch", 0.0)],
            cache_points: vec![cut(0, "source", 100e9), cut(1, "burn", 150e9)],
            delivered_bytes_per_row: 150e3,
            store_bytes_per_row: 100e3,
            ..JobModel::default()
        }
    }

    /// Returns the trace of a pipeline with this name.
    pub(crate) fn trace(name: &str, burn_ms: f64) -> SavedTrace {
        trace_of("data/", name, burn_ms)
    }

    /// Returns the trace of a pipeline with this URL and name.
    pub(crate) fn trace_of(url: &str, name: &str, burn_ms: f64) -> SavedTrace {
        let text = TEXT.replace("data/", url).replace("photographs", name);
        let pipeline = Pipeline::from_yaml(&text, "t.yaml").unwrap();
        let model = model(burn_ms);
        let input = TraceInput { worker_type: "2 cores, 1.0 GiB", rows: 4500, seconds: 5.0, model: &model };
        SavedTrace::new(&pipeline, &pipeline, input)
    }

    fn error_of(file: &Path) -> String {
        let failure = SavedTrace::find(file).unwrap_err();
        assert_eq!(failure.status(), 2);
        failure.to_string()
    }

    #[test]
    fn a_saved_trace_is_found_by_its_pipeline_file_and_by_its_own_path() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        fs::write(&file, format!("# A comment changes nothing.\n{TEXT}")).unwrap();
        let trace = trace("photographs", 1.0);
        trace.save(&default_path(&file)).unwrap();
        assert_eq!(SavedTrace::find(&file).unwrap(), trace);
        assert_eq!(SavedTrace::find(&folder.path().join("a.trace.json")).unwrap(), trace);
    }

    #[test]
    fn a_trace_is_replaced_atomically() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a.trace.json"), folder.path().join("link.json"));
        let (first, second) = (trace("photographs", 1.0), trace("photographs", 2.0));
        first.save(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let before = fs::File::open(&path).unwrap();
        second.save(&link).unwrap();
        // A reader of the old file still reads all of it.
        let text = io::read_to_string(before).unwrap();
        assert_eq!(SavedTrace::parse(&text, &path).unwrap(), first);
        assert_eq!(SavedTrace::find(&path).unwrap(), second);
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file remains");
        let failure = second.save(&folder.path().join("missing/a.json")).unwrap_err();
        assert!(failure.to_string().contains("no such file or directory; specify another path"), "{failure}");
        second.save(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn the_error_for_a_missing_trace_names_the_command_that_creates_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        fs::write(&file, TEXT).unwrap();
        let shown = folder.path().display().to_string();
        assert_eq!(
            error_of(&file).replace(&shown, "D"),
            "the trace D/a.trace.json does not exist: create it with `feedline explain D/a.yaml --save-trace`"
        );
        assert_eq!(
            error_of(&folder.path().join("b.yaml")).replace(&shown, "D"),
            "cannot read D/b.yaml: no such file or directory; pass the path of a pipeline file or trace"
        );
    }

    #[test]
    fn a_trace_that_does_not_match_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let shown = folder.path().display().to_string();
        let file = folder.path().join("a.yaml");
        trace("photographs", 1.0).save(&default_path(&file)).unwrap();
        fs::write(&file, TEXT.replace("cpu_us: 9", "cpu_us: 10")).unwrap();
        assert_eq!(
            error_of(&file).replace(&shown, "D"),
            "the trace D/a.trace.json is out of date, because D/a.yaml has changed since: create a new trace with \
             `feedline explain D/a.yaml --save-trace`"
        );
        fs::write(&file, TEXT).unwrap();
        fs::write(default_path(&file), "{\"version\": 7}").unwrap();
        assert_eq!(
            error_of(&file).replace(&shown, "D"),
            "the trace D/a.trace.json has version 7, but this release reads version 1; create a new trace with \
             `feedline explain FILE --save-trace`"
        );
        fs::write(default_path(&file), "{\"version\": 1}").unwrap();
        assert!(error_of(&file).contains("missing field `name`; create a new trace"));
    }
}
