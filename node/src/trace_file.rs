//! Traces as files: what `feedline explain --save-trace` saw of a pipeline, for `feedline plan` to plan with later and
//! elsewhere.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use feedline_data::pipeline::Pipeline;
use feedline_planner::model::JobModel;
use feedline_planner::observe;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, reason};
use crate::replace::replace;

/// Version of the file's format.
const VERSION: u32 = 1;
/// Ending of a trace's name beside its pipeline file.
const ENDING: &str = "trace.json";

/// What was seen of a pipeline. Field names are those of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedTrace {
    /// Version of the format.
    version: u32,
    /// The pipeline's name.
    pub(crate) name: String,
    /// Stands for what affects its rows: [`Pipeline::fingerprint`].
    fingerprint: String,
    /// The pipeline as it was written, in canonical form.
    pipeline: String,
    /// The worker that it was traced on: cores and memory.
    pub(crate) worker_type: String,
    /// Rows that were delivered while it was traced.
    rows: u64,
    /// Seconds in which they were.
    seconds: f64,
    /// Fingerprints of dataset and operators up to each cut of the model, in order.
    pub(crate) cut_keys: Vec<u64>,
    /// What a row costs, for workers of that type.
    pub(crate) model: JobModel,
}

/// What a trace is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceInput<'a> {
    /// The worker's type.
    pub(crate) worker_type: &'a str,
    /// Rows delivered.
    pub(crate) rows: u64,
    /// Seconds in which they were.
    pub(crate) seconds: f64,
    /// The job's costs.
    pub(crate) model: &'a JobModel,
}

impl SavedTrace {
    /// The trace of a pipeline that stands in its file as `written` and ran as `resolved`.
    pub(crate) fn new(written: &Pipeline, resolved: &Pipeline, seen: TraceInput<'_>) -> Self {
        Self {
            version: VERSION,
            name: written.name.clone(),
            fingerprint: written.fingerprint(),
            pipeline: written.to_yaml(),
            worker_type: seen.worker_type.to_owned(),
            rows: seen.rows,
            seconds: seen.seconds,
            cut_keys: observe::cut_keys(resolved, seen.model),
            model: seen.model.clone(),
        }
    }

    /// Writes the trace, whole or not at all.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(Failure::failed)?;
        write_whole(path, &(text + "\n")).map_err(|error| {
            let path = path.display();
            Failure::failed(format!("cannot write the trace {path}: {}; give another path", reason(&error)))
        })
    }

    /// Whether the pipeline reads its workers' own disks. One sentence where it cannot be told.
    pub(crate) fn reads_local_files(&self) -> Result<bool, String> {
        let pipeline = Pipeline::from_yaml(&self.pipeline, "its pipeline").map_err(|error| {
            format!(
                "the trace of `{}` cannot be read: {error}; make it anew with `feedline explain FILE --save-trace`",
                self.name
            )
        })?;
        Ok(observe::reads_local_files(&pipeline))
    }

    /// The trace that `file` is, or that lies beside it where it is a pipeline file.
    pub(crate) fn find(file: &Path) -> Result<Self, Failure> {
        let text = read(file, "give the path of a pipeline file or of a trace")?;
        if text.trim_start().starts_with('{') {
            return Self::parse(&text, file);
        }
        let pipeline = crate::pipeline_file::read(file)?;
        let path = beside(file);
        if !path.exists() {
            return Err(Failure::wrong_use(format!(
                "there is no trace of {file} at {}; make one with `feedline explain {file} --save-trace`",
                path.display(),
                file = file.display()
            )));
        }
        let trace = Self::parse(&read(&path, "make it readable")?, &path)?;
        if trace.pipeline != pipeline.to_yaml() {
            return Err(Failure::wrong_use(format!(
                "the trace {} is of another state of {file}, which has changed since; make a new one with \
                 `feedline explain {file} --save-trace`",
                path.display(),
                file = file.display()
            )));
        }
        Ok(trace)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, Failure> {
        let path = path.display();
        let again = "make it anew with `feedline explain FILE --save-trace`";
        let refused = |error| Failure::wrong_use(format!("{path} is no trace: {error}; {again}"));
        let value: serde_json::Value = serde_json::from_str(text).map_err(refused)?;
        let version = value["version"].as_u64();
        if let Some(version) = version.filter(|version| *version != u64::from(VERSION)) {
            return Err(Failure::wrong_use(format!(
                "the trace {path} has version {version}, this release reads version {VERSION}; {again}"
            )));
        }
        let trace: Self = serde_json::from_value(value).map_err(refused)?;
        if trace.cut_keys.len() != trace.model.cuts.len() {
            return Err(Failure::wrong_use(format!(
                "{path} is no trace: it has {} names for {} cuts; {again}",
                trace.cut_keys.len(),
                trace.model.cuts.len()
            )));
        }
        Ok(trace)
    }
}

/// Where the trace of a pipeline file is by default: `a.trace.json` beside `a.yaml`.
pub(crate) fn beside(file: &Path) -> PathBuf {
    file.with_extension(ENDING)
}

/// Puts a text in the place of a file, behind links where `path` is one; into what is no file, such as a pipe, it is written.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let real = match fs::metadata(path) {
        Ok(found) if !found.is_file() => return fs::write(path, text),
        Ok(_) => fs::canonicalize(path)?,
        Err(_) => path.to_owned(),
    };
    replace(&real, |file| file.write_all(text.as_bytes()))
}

fn read(path: &Path, advice: &str) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| {
        Failure::wrong_use(format!("cannot read {}: {}; {advice}", path.display(), reason(&error)))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use feedline_planner::model::{CachePointModel, OperatorModel};

    use super::*;

    const TEXT: &str = "name: photographs\nsource: {url: data/, format: tfrecord}\noperators:\n  \
        - burn: {cpu_us: 9}\n  - batch: {size: 4}\n";

    /// A job whose rows take so many milliseconds on each traced core, most of them in its last operator.
    pub(crate) fn model(burn_ms: f64) -> JobModel {
        let operator = |name: &str, cpu_ms: f64| OperatorModel {
            name: name.to_owned(),
            visit_ratio: 1.0,
            cpu_s: [("2 cores, 1.0 GiB".to_owned(), cpu_ms / 1e3)].into(),
            ..OperatorModel::default()
        };
        let cut = |after: usize, operator: &str, bytes: f64| CachePointModel {
            after,
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
            cuts: vec![cut(0, "source", 100e9), cut(1, "burn", 150e9)],
            delivered_bytes: 150e3,
            store_bytes: 100e3,
            ..JobModel::default()
        }
    }

    /// The trace of a pipeline of that name.
    pub(crate) fn trace(name: &str, burn_ms: f64) -> SavedTrace {
        trace_of("data/", name, burn_ms)
    }

    /// The same of a pipeline that reads from there.
    pub(crate) fn trace_of(url: &str, name: &str, burn_ms: f64) -> SavedTrace {
        let text = TEXT.replace("data/", url).replace("photographs", name);
        let pipeline = Pipeline::from_yaml(&text, "t.yaml").unwrap();
        let model = model(burn_ms);
        let seen = TraceInput { worker_type: "2 cores, 1.0 GiB", rows: 4500, seconds: 5.0, model: &model };
        SavedTrace::new(&pipeline, &pipeline, seen)
    }

    fn refusal(file: &Path) -> String {
        let failure = SavedTrace::find(file).unwrap_err();
        assert_eq!(failure.status(), 2);
        failure.to_string()
    }

    #[test]
    fn a_saved_trace_is_found_beside_its_file_and_by_its_own_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        fs::write(&file, format!("# A comment changes nothing.\n{TEXT}")).unwrap();
        let trace = trace("photographs", 1.0);
        trace.save(&beside(&file)).unwrap();
        assert_eq!(SavedTrace::find(&file).unwrap(), trace);
        assert_eq!(SavedTrace::find(&folder.path().join("a.trace.json")).unwrap(), trace);
    }

    #[test]
    fn a_trace_takes_the_place_of_another_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a.trace.json"), folder.path().join("link.json"));
        let (first, second) = (trace("photographs", 1.0), trace("photographs", 2.0));
        first.save(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let before = fs::File::open(&path).unwrap();
        second.save(&link).unwrap();
        // Who reads the first one reads it to its end.
        let text = io::read_to_string(before).unwrap();
        assert_eq!(SavedTrace::parse(&text, &path).unwrap(), first);
        assert_eq!(SavedTrace::find(&path).unwrap(), second);
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file stays");
        let failure = second.save(&folder.path().join("missing/a.json")).unwrap_err();
        assert!(failure.to_string().contains("no such file or directory; give another path"), "{failure}");
        second.save(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn a_missing_trace_says_how_to_make_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        fs::write(&file, TEXT).unwrap();
        let shown = folder.path().display().to_string();
        assert_eq!(
            refusal(&file).replace(&shown, "D"),
            "there is no trace of D/a.yaml at D/a.trace.json; make one with `feedline explain D/a.yaml --save-trace`"
        );
        assert_eq!(
            refusal(&folder.path().join("b.yaml")).replace(&shown, "D"),
            "cannot read D/b.yaml: no such file or directory; give the path of a pipeline file or of a trace"
        );
    }

    #[test]
    fn a_trace_of_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let shown = folder.path().display().to_string();
        let file = folder.path().join("a.yaml");
        trace("photographs", 1.0).save(&beside(&file)).unwrap();
        fs::write(&file, TEXT.replace("cpu_us: 9", "cpu_us: 10")).unwrap();
        assert_eq!(
            refusal(&file).replace(&shown, "D"),
            "the trace D/a.trace.json is of another state of D/a.yaml, which has changed since; make a new one with \
             `feedline explain D/a.yaml --save-trace`"
        );
        fs::write(&file, TEXT).unwrap();
        fs::write(beside(&file), "{\"version\": 7}").unwrap();
        assert_eq!(
            refusal(&file).replace(&shown, "D"),
            "the trace D/a.trace.json has version 7, this release reads version 1; make it anew with \
             `feedline explain FILE --save-trace`"
        );
        fs::write(beside(&file), "{\"version\": 1}").unwrap();
        assert!(refusal(&file).contains("is no trace: missing field `name`; make it anew"));
    }
}
