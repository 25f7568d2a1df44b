//! Reads a pipeline file, and resolves its relative paths so that other processes read the same files.

use std::fs;
use std::path::{Path, PathBuf};

use feedline_data::pipeline::Pipeline;

use crate::failure::{Failure, reason};

/// Reads the pipeline in `file`, and resolves its relative paths against the working directory.
pub(crate) fn load(file: &Path) -> Result<Pipeline, Failure> {
    resolve(read(file)?)
}

/// Reads the pipeline in `file` without resolving paths.
pub(crate) fn read(file: &Path) -> Result<Pipeline, Failure> {
    let name = file.display().to_string();
    let text = fs::read_to_string(file).map_err(|error| {
        Failure::invalid_usage(format!(
            "cannot read {name}: {}; pass the path of a pipeline file",
            reason(&error)
        ))
    })?;
    Pipeline::from_yaml(&text, &name).map_err(Failure::invalid_usage)
}

/// Resolves the relative paths of a pipeline against the working directory.
pub(crate) fn resolve(mut pipeline: Pipeline) -> Result<Pipeline, Failure> {
    let directory = std::env::current_dir().map_err(|error| {
        Failure::failed(format!(
            "cannot read the working directory: {}; change to another directory",
            reason(&error)
        ))
    })?;
    resolve_paths(&mut pipeline, &directory);
    Ok(pipeline)
}

fn resolve_paths(pipeline: &mut Pipeline, directory: &Path) {
    let source = &mut pipeline.source;
    let mixed = source.mix.iter_mut().flat_map(|mix| &mut mix.parts).map(|part| &mut part.source.url);
    for url in mixed.chain([&mut source.url]).flatten() {
        *url = resolve_url(url, directory);
    }
    for operator in &mut pipeline.operators {
        if let Some(file) = operator.kind.definition_mut().file_mut() {
            *file = resolve_url(file, directory);
        }
    }
}

/// Makes a relative path absolute. URLs and a final `/`, which marks a prefix, do not change.
fn resolve_url(url: &str, directory: &Path) -> String {
    if url.contains("://") || url.is_empty() {
        return url.to_owned();
    }
    let mut path = PathBuf::new();
    for component in directory.join(url).components() {
        match component {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                // The parent of a symbolic link is the parent of its target.
                path = fs::canonicalize(&path).unwrap_or(path);
                path.pop();
            }
            other => path.push(other),
        }
    }
    let mut text = path.display().to_string();
    if url.ends_with('/') && !text.ends_with('/') {
        text.push('/');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_are_resolved_against_the_working_directory() {
        let directory = Path::new("/srv/here");
        assert_eq!(resolve_url("data/*.tar", directory), "/srv/here/data/*.tar");
        assert_eq!(resolve_url("./data/", directory), "/srv/here/data/");
        assert_eq!(resolve_url("/data/{0..3}.csv", directory), "/data/{0..3}.csv");
        assert_eq!(resolve_url("../../x/../data", directory), "/data");
        assert_eq!(resolve_url("s3://bucket/../x/", directory), "s3://bucket/../x/");
        assert_eq!(resolve_url("file:///x", directory), "file:///x");
    }

    #[test]
    fn the_parent_of_a_symbolic_link_is_that_of_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir_all(root.join("far/away")).unwrap();
        std::os::unix::fs::symlink(root.join("far/away"), root.join("near")).unwrap();
        assert_eq!(resolve_url("near/../data", &root), root.join("far/data").display().to_string());
    }

    #[test]
    fn paths_of_the_source_and_the_tokenizer_are_resolved() {
        let text = "name: t\nsource: {url: [a.txt, s3://b/c], format: text}\noperators:\n  \
            - tokenize: {column: text, tokenizer: t.json, output: ids}\n  - pad: {column: ids, length: 8}\n  \
            - select: {columns: [ids]}\n  - batch: {size: 2}\n";
        let mut pipeline = Pipeline::from_yaml(text, "t.yaml").unwrap();
        resolve_paths(&mut pipeline, Path::new("/w"));
        assert_eq!(pipeline.source.url, ["/w/a.txt", "s3://b/c"]);
        assert!(pipeline.to_yaml().contains("tokenizer: /w/t.json"));
    }

    #[test]
    fn a_missing_file_is_wrong_use() {
        let failure = load(Path::new("/nowhere/p.yaml")).unwrap_err();
        assert_eq!(failure.status(), 2);
        assert_eq!(
            failure.to_string(),
            "cannot read /nowhere/p.yaml: no such file or directory; pass the path of a pipeline file"
        );
    }
}
