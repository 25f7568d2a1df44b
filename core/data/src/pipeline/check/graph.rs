//! Checks of graph sources and of pipelines that sample graphs.

use crate::pipeline::check_error::{CheckError, ErrorPath};
use crate::pipeline::{Format, OnError, OperatorKind, Pipeline, Source};

/// Checks the URL of a graph source, and that other sources have no seed set.
pub(super) fn check_graph_source(source: &Source) -> Result<(), CheckError> {
    let error = |field, sentence: String| Err(CheckError::new(ErrorPath::Source(field), sentence));
    if source.format != Format::Graph {
        return match &source.seeds {
            Some(_) => error(
                "seeds",
                format!(
                    "the format {} has no seeds; remove `seeds`, or use `format: graph` for the folder of a graph",
                    source.format.name()
                ),
            ),
            None => Ok(()),
        };
    }
    if source.url.len() != 1 {
        let sentence = "a graph has one folder; write one path or URL, and list other graphs under `mix`";
        return error("url", sentence.to_owned());
    }
    match &source.seeds {
        Some(name) if name.trim().is_empty() => {
            error("seeds", "the name is empty; write the name of a seed set, or remove `seeds`".to_owned())
        }
        _ => Ok(()),
    }
}

/// Checks a pipeline that samples a graph.
pub(super) fn check_sampling(pipeline: &Pipeline) -> Result<(), CheckError> {
    let Some(last) = pipeline.operators.len().checked_sub(1) else { return Ok(()) };
    let OperatorKind::SampleNeighbors(sample) = &pipeline.operators[last].kind else { return Ok(()) };
    let error = |sentence: String| Err(CheckError::new(ErrorPath::Operator(last), sentence));
    if pipeline.on_error == OnError::Replace {
        return error(
            "`on_error: replace` would sample the neighbors of node 0 for a failed seed; use `on_error: fail` or `skip`"
                .to_owned(),
        );
    }
    if sample.graph.is_some() {
        return Ok(());
    }
    let mut folders: Vec<&str> = pipeline.source.graph_urls().map(|url| url.trim_end_matches('/')).collect();
    folders.sort_unstable();
    folders.dedup();
    match folders.as_slice() {
        [_] => Ok(()),
        [] => error(format!(
            "graph is missing; write the path or URL of the graph's folder, because the source has the format {}",
            pipeline.source.datasets().first().map_or("unknown", |dataset| dataset.format.name())
        )),
        [first, second, ..] => error(format!(
            "the source reads the seeds of several graphs ({first} and {second}); set graph to the folder of the graph to sample"
        )),
    }
}
