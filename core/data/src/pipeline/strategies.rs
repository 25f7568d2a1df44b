//! Random pipelines for property tests. All generated pipelines pass `Pipeline::check`.

use proptest::prelude::*;

use super::parameter_checks::MAX_TENSOR_LENGTH;
use super::*;
use crate::compression::SourceCompression;
use crate::graph::{NegativeMode, NegativeWeights, TemporalStrategy};
use crate::schema::ScalarType;

/// Generates pipelines that pass the check. Their columns need not fit a source.
pub(super) fn pipelines() -> impl Strategy<Value = Pipeline> {
    let head = ("[A-Za-z0-9_.-]{1,12}", sources(), any::<u64>(), any::<u64>());
    let modes = (
        prop::sample::select(vec![OrderMode::Deterministic, OrderMode::Relaxed]),
        prop::sample::select(vec![OnError::Fail, OnError::Skip, OnError::Replace]),
    );
    let last =
        (1u32..=1_000_000, prop::sample::select(vec![Remainder::Emit, Remainder::Drop, Remainder::Carry]))
            .prop_map(|(size, remainder)| OperatorKind::Batch(BatchParams { size, remainder }));
    let last = prop_oneof![last, sampling()];
    let repeat = prop::option::of((1u32..9).prop_map(|count| OperatorKind::Repeat(Repeat { count })));
    let kinds = (prop::collection::vec(kinds(), 0..6), repeat, last).prop_map(|(mut kinds, repeat, last)| {
        kinds.extend(repeat);
        kinds.push(last);
        kinds
    });
    let operators = kinds.prop_flat_map(|kinds| {
        let limits = prop::collection::vec(prop::option::of(1u32..=u32::MAX), kinds.len());
        limits.prop_map(move |limits| {
            let operators = kinds.iter().cloned().zip(limits);
            operators.map(|(kind, parallelism)| Operator { kind, parallelism }).collect::<Vec<_>>()
        })
    });
    (head, modes, operators).prop_map(|((name, source, seed, window), (order, on_error), operators)| {
        let samples = operators.last().is_some_and(|last: &Operator| last.kind.is_indivisible());
        let on_error = if samples && on_error == OnError::Replace { OnError::Fail } else { on_error };
        Pipeline { name, source, seed, shuffle: Shuffle { window }, order, on_error, operators }
    })
}

fn sampling() -> impl Strategy<Value = OperatorKind> {
    let numbers = prop::collection::vec(-1_i64..=65_536, 2);
    let fanouts = prop_oneof![
        numbers.clone().prop_map(FanoutList::AllRelations),
        prop::collection::btree_map("[a-z]{1,8}", numbers, 1..3).prop_map(FanoutList::ByRelation),
    ];
    let features = prop_oneof![
        prop::collection::btree_set(text(), 0..3)
            .prop_map(|names| FeatureList::Names(names.into_iter().collect())),
        prop::collection::btree_map(text(), dtypes(), 1..3).prop_map(FeatureList::Typed),
    ];
    let sizes = (1u32..=1_000_000, fanouts, features, text(), any::<[bool; 7]>());
    let negatives = prop::option::of((1u32..=4, any::<[bool; 3]>()).prop_map(
        |(amount, [is_binary, strict, is_uniform])| NegativeSampling {
            mode: if is_binary { NegativeMode::Binary } else { NegativeMode::Triplet },
            amount,
            strict,
            by: if is_uniform { NegativeWeights::Uniform } else { NegativeWeights::Degree },
        },
    ));
    (sizes, prop::option::of(1_u64..=u64::MAX), negatives).prop_map(
        |((size, fanouts, features, graph, flags), window, negatives)| {
            let [replace, disjoint, weighted, edge_ids, is_last, is_bidirectional, is_partitioned] = flags;
            let size = if negatives.is_some() { size.min(200_000) } else { size };
            let subgraph =
                if is_bidirectional { SubgraphEdges::Bidirectional } else { SubgraphEdges::Sampled };
            let is_partitioned = is_partitioned && !features.is_empty();
            let placement = if is_partitioned { PlacementMode::Partition } else { PlacementMode::Replicate };
            let strategy = if is_last { TemporalStrategy::Last } else { TemporalStrategy::Uniform };
            OperatorKind::SampleNeighbors(SampleNeighbors {
                fanouts,
                features,
                graph: Some(graph),
                time: disjoint.then(|| SeedTime { column: "time".to_owned(), strategy, window }),
                ..SampleNeighbors {
                    size,
                    replace,
                    disjoint,
                    weighted,
                    edge_ids,
                    subgraph,
                    negatives,
                    placement,
                    ..SampleNeighbors::new(size, &[1])
                }
            })
        },
    )
}

fn sources() -> impl Strategy<Value = Source> {
    let formats = prop::sample::select(Format::ALL)
        .prop_filter("needs topics or one folder", |format| !matches!(format, Format::Kafka | Format::Graph));
    let features = prop::collection::btree_map(text(), text(), 0..4);
    let credentials = prop::option::of("[a-z0-9_.-]{1,9}");
    let compressions = [SourceCompression::Uncompressed, SourceCompression::Zlib];
    let compression = prop::option::of(prop::sample::select(compressions.to_vec()));
    (prop::collection::vec(text(), 1..4), formats, features, credentials, compression).prop_map(
        |(url, format, features, credentials, compression)| Source {
            features,
            url,
            credentials,
            compression: compression.filter(|_| format.has_compressed_files()),
            ..Source::new(format, "")
        },
    )
}

/// Generates text that must be quoted in YAML: numbers, booleans, punctuation, quotes, line breaks and other scripts.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[!-~][ -~]{0,10}",
        "[a-zäß漢'\"\\\\][a-z\n\t :#{}\\[\\]é]{0,8}",
        prop::sample::select(vec![
            "true",
            "null",
            "~",
            "1",
            "-1.5",
            "1e3",
            "0x1F",
            "- a",
            "yes",
            "2026-01-01",
            "<<"
        ])
        .prop_map(str::to_owned),
    ]
}

fn sizes() -> impl Strategy<Value = Size> {
    [1u32..=16_384, 1u32..=16_384]
}

/// Generates numbers from `least / 1000` to 9.
fn decimals(least: i32) -> impl Strategy<Value = f64> {
    (least..=9_000).prop_map(|thousandths| f64::from(thousandths) / 1000.0)
}

fn positive_bounds() -> impl Strategy<Value = [f64; 2]> {
    (decimals(1), decimals(1)).prop_map(|(one, other)| [one.min(other), one.max(other)])
}

fn dtypes() -> impl Strategy<Value = ScalarType> {
    prop::sample::select(vec![ScalarType::Bool, ScalarType::UInt8, ScalarType::Int64, ScalarType::Float16])
}

fn kinds() -> impl Strategy<Value = OperatorKind> {
    prop_oneof![image_kinds(), column_kinds(), list_kinds(), function_kinds()]
}

fn image_kinds() -> impl Strategy<Value = OperatorKind> {
    let normalize = (
        text(),
        prop::collection::vec((decimals(-9_000), decimals(1)), 1..4),
        prop::sample::select(vec![ScalarType::Float16, ScalarType::Float32]),
        prop::sample::select(vec![TensorLayout::Hwc, TensorLayout::Chw]),
    );
    prop_oneof![
        text().prop_map(|column| OperatorKind::DecodeImage(DecodeImage { column })),
        (text(), sizes()).prop_map(|(column, size)| OperatorKind::Resize(Resize { column, size })),
        (text(), sizes(), prop::option::of(1u32..=16_384))
            .prop_map(|(column, size, resize)| OperatorKind::CenterCrop(CenterCrop { column, size, resize })),
        (text(), sizes(), positive_bounds(), positive_bounds()).prop_map(|(column, size, scale, ratio)| {
            OperatorKind::RandomResizedCrop(RandomResizedCrop { column, size, scale, ratio })
        }),
        (text(), (0..=1000).prop_map(|thousandths| f64::from(thousandths) / 1000.0))
            .prop_map(|(column, p)| OperatorKind::RandomHorizontalFlip(RandomHorizontalFlip { column, p })),
        normalize.prop_map(|(column, moments, dtype, layout)| {
            let (mean, std) = moments.into_iter().unzip();
            OperatorKind::Normalize(Normalize { column, mean, std, dtype, layout })
        }),
    ]
}

fn column_kinds() -> impl Strategy<Value = OperatorKind> {
    prop_oneof![
        (text(), dtypes()).prop_map(|(column, dtype)| OperatorKind::Cast(Cast { column, dtype })),
        prop::collection::btree_set(text(), 1..4)
            .prop_map(|columns| OperatorKind::Select(Select { columns: columns.into_iter().collect() })),
        prop::collection::btree_map(text(), text(), 1..4).prop_map(|columns| {
            let mut present = std::collections::BTreeSet::new();
            let columns = columns.into_iter().filter(|(_, old)| present.insert(old.clone())).collect();
            OperatorKind::Rename(Rename { columns })
        }),
        text().prop_map(|predicate| OperatorKind::Filter(Filter { predicate })),
        (0u64..60_000_000).prop_map(|cpu_us| OperatorKind::Burn(Burn { cpu_us })),
        (0u64..60_000).prop_map(|ms| OperatorKind::Wait(Wait { ms })),
        text().prop_map(|column| OperatorKind::RecodeJpeg(RecodeJpeg { column })),
    ]
}

fn list_kinds() -> impl Strategy<Value = OperatorKind> {
    prop_oneof![
        (text(), text(), prop::option::of(text()), any::<bool>()).prop_map(
            |(column, tokenizer, output, add_special_tokens)| {
                OperatorKind::Tokenize(Tokenize { column, tokenizer, output, add_special_tokens })
            }
        ),
        (text(), 1u32..=u32::MAX)
            .prop_map(|(column, length)| OperatorKind::Truncate(Truncate { column, length })),
        (text(), 1u32..=MAX_TENSOR_LENGTH, any::<i64>())
            .prop_map(|(column, length, value)| OperatorKind::Pad(Pad { column, length, value })),
    ]
}

fn outputs() -> impl Strategy<Value = FunctionOutput> {
    let numbers = (dtypes(), prop::collection::vec(1u32..9, 0..3))
        .prop_map(|(dtype, shape)| FunctionOutput::numbers(dtype, shape));
    let elements = dtypes().prop_map(ElementType::Number);
    let elements = prop_oneof![elements, Just(ElementType::Text), Just(ElementType::Bytes)];
    let others =
        (elements, any::<bool>()).prop_map(|(dtype, list)| FunctionOutput { dtype, shape: Vec::new(), list });
    prop_oneof![numbers, others]
}

fn function_kinds() -> impl Strategy<Value = OperatorKind> {
    let code = (prop::option::of("[A-Za-z0-9+/]{4}{1,3}"), prop::collection::vec("[a-z/]{1,9}", 0..2));
    let environment = prop::collection::btree_map("[a-z]{1,8}", "[0-9]{1,2}(\\.[0-9]){0,2}", 0..3);
    let named = ("[a-z]{1,5}(\\.[a-z]{1,5})?:[a-z]{1,5}", code, prop::option::of("[a-z0-9]{1,5}"));
    let bounds = (1u32..=3600, (1u64 << 24)..(1 << 40), prop::option::of(1u32..10_000), any::<bool>());
    let columns = prop::collection::btree_set(text(), 0..3);
    let outputs = prop::collection::btree_map(text(), outputs(), 1..3);
    (named, columns, outputs, environment, bounds, any::<bool>()).prop_map(
        |((function, (code, path), version), columns, outputs, packages, bounds, is_filter)| {
            let python = (code.is_some() || !packages.is_empty()).then(|| "3.11".to_owned());
            let function = Function {
                code,
                path,
                version,
                columns: columns.into_iter().collect(),
                outputs: if is_filter { Default::default() } else { outputs },
                environment: python.map(|python| FunctionEnvironment { python: Some(python), packages }),
                timeout_s: bounds.0,
                memory: bounds.1,
                rows: bounds.2,
                seeded: bounds.3,
                ..Function::new(function)
            };
            if is_filter {
                OperatorKind::FilterFunction(FilterFunction(function))
            } else {
                OperatorKind::Map(MapFunction(function))
            }
        },
    )
}
