//! The sampled graphs of a job in the report: their expected and their measured size, the time of each stage, and the loaded graph.

use feedline_data::pipeline::GraphBatchSize;
use feedline_planner::model::GraphModel;

use super::seconds::format_seconds;
use crate::size::format_bytes;
use crate::table;

/// Formats the sampled graphs of a job as text.
pub(super) fn render(model: &GraphModel) -> String {
    let row = |name: &str, size: &GraphBatchSize| {
        vec![
            name.to_owned(),
            size.seeds.to_string(),
            size.nodes.to_string(),
            size.edges.to_string(),
            format_bytes(size.bytes as f64),
        ]
    };
    let expected = if model.is_modeled { "expected by the model" } else { "expected by the fanouts" };
    let measured = model.measured.as_ref().map(|measured| row("measured", &measured.size));
    let rows = [row(expected, &model.expected)].into_iter().chain(measured);
    let header = ["sampled graph", "seeds", "nodes", "edges", "bytes"];
    let mut text = table::render_with_header(header, rows, &[0]);
    text.push('\n');
    if let Some(measured) = &model.measured {
        text.push_str(&format!(
            "each batch    sample {}, map {}, gather {}, encode {}, wait {}\n",
            format_seconds(measured.sample_s),
            format_seconds(measured.map_s),
            format_seconds(measured.gather_s),
            format_seconds(measured.encode_s),
            format_seconds(measured.wait_s)
        ));
    }
    text.push_str(&format!(
        "loaded graph  {}, {} to load\n",
        format_bytes(model.graph_bytes as f64),
        format_seconds(model.load_s)
    ));
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use feedline_planner::model::MeasuredGraphBatch;

    use super::*;

    #[test]
    fn expected_and_measured_batches_are_compared() {
        let measured = MeasuredGraphBatch {
            size: GraphBatchSize { seeds: 1024, nodes: 63_986, edges: 119_872, bytes: 32_900_000 },
            sample_s: 0.012,
            map_s: 0.009,
            gather_s: 0.008,
            encode_s: 0.0005,
            wait_s: 0.0,
        };
        let mut model = GraphModel {
            expected: GraphBatchSize { seeds: 1024, nodes: 64_307, edges: 120_345, bytes: 33_100_000 },
            is_modeled: true,
            measured: Some(measured),
            graph_bytes: 1_200_000_000,
            load_s: 3.1,
        };
        expect![[r#"
            sampled graph          seeds  nodes   edges    bytes
            expected by the model   1024  64307  120345  33.1 MB
            measured                1024  63986  119872  32.9 MB

            each batch    sample 12.00 ms, map 9.00 ms, gather 8.00 ms, encode 500.0 us, wait -
            loaded graph  1.2 GB, 3.10 s to load
        "#]]
        .assert_eq(&render(&model));
        (model.is_modeled, model.measured) = (false, None);
        expect![[r#"
            sampled graph            seeds  nodes   edges    bytes
            expected by the fanouts   1024  64307  120345  33.1 MB

            loaded graph  1.2 GB, 3.10 s to load
        "#]]
        .assert_eq(&render(&model));
    }
}
