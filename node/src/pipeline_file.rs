//! Reads a pipeline file and makes its relative paths absolute, so that other processes read the same files.

use std::fs;
use std::path::{Path, PathBuf};

use feedline_data::pipeline::Pipeline;

use crate::failure::{Failure, reason};

/// The pipeline in `file`, its relative paths resolved against the present directory.
pub(crate) fn load(file: &Path) -> Result<Pipeline, Failure> {
    resolved(read(file)?)
}

/// The pipeline in `file` as it is written there.
pub(crate) fn read(file: &Path) -> Result<Pipeline, Failure> {
    let name = file.display().to_string();
    let text = fs::read_to_string(file).map_err(|error| {
        Failure::wrong_use(format!(
            "cannot read {name}: {}; give the path of a pipeline file",
            reason(&error)
        ))
    })?;
    Pipeline::from_yaml(&text, &name).map_err(Failure::wrong_use)
}

/// The same pipeline, its relative paths resolved against the present directory.
pub(crate) fn resolved(mut pipeline: Pipeline) -> Result<Pipeline, Failure> {
    let here = std::env::current_dir().map_err(|error| {
        Failure::failed(format!("cannot tell the present directory: {}; change to another", reason(&error)))
    })?;
    resolve_paths(&mut pipeline, &here);
    Ok(pipeline)
}

fn resolve_paths(pipeline: &mut Pipeline, here: &Path) {
    let source = &mut pipeline.source;
    let mixed = source.mix.iter_mut().flat_map(|mix| &mut mix.parts).map(|part| &mut part.source.url);
    for url in mixed.chain([&mut source.url]).flatten() {
        *url = resolve(url, here);
    }
    for operator in &mut pipeline.operators {
        if let Some(file) = operator.kind.definition_mut().file_mut() {
            *file = resolve(file, here);
        }
    }
}

/// A path or URL that does not depend on the directory in which it is read. A final `/`, which marks a prefix, stays.
fn resolve(url: &str, here: &Path) -> String {
    if url.contains("://") || url.is_empty() {
        return url.to_owned();
    }
    let mut path = PathBuf::new();
    for component in here.join(url).components() {
        match component {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                // Through a symbolic link `..` leads elsewhere than the text says.
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
    fn relative_paths_start_at_the_present_directory() {
        let here = Path::new("/srv/here");
        assert_eq!(resolve("data/*.tar", here), "/srv/here/data/*.tar");
        assert_eq!(resolve("./data/", here), "/srv/here/data/");
        assert_eq!(resolve("/data/{0..3}.csv", here), "/data/{0..3}.csv");
        assert_eq!(resolve("../../x/../data", here), "/data");
        assert_eq!(resolve("s3://bucket/../x/", here), "s3://bucket/../x/");
        assert_eq!(resolve("file:///x", here), "file:///x");
    }

    #[test]
    fn a_parent_of_a_link_is_where_the_link_leads() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir_all(root.join("far/away")).unwrap();
        std::os::unix::fs::symlink(root.join("far/away"), root.join("near")).unwrap();
        assert_eq!(resolve("near/../data", &root), root.join("far/data").display().to_string());
    }

    #[test]
    fn source_and_tokenizer_are_resolved() {
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
            "cannot read /nowhere/p.yaml: no such file or directory; give the path of a pipeline file"
        );
    }
}
