//! Negatives of links, compared with a slow reference, and their documented draws.

use proptest::prelude::*;

use super::super::draws::DrawScope;
use super::super::negatives::NegativeSeeds;
use super::reference::{self, Words, draw_key};
use super::test_graph::{TestCase, TestGraph, TestRandom, TestRelation, TestSeeds};
use crate::graph::{
    BatchSeeds, Fanout, GraphView, MAX_NEGATIVES, NegativeMode, NegativeRule, NegativeWeights,
    NeighborSampler, RelationView, Resample, SampleError, SampledGraph, SamplingSettings, Seed, SeedRow,
};

/// Creates a case whose rows are links of a random relation with negatives.
fn negative_case(key: u64) -> TestCase {
    let mut case = TestCase::random(key);
    let random = &mut TestRandom::new(!key);
    let relations = &case.graph.relations;
    let number = random.index(relations.len());
    let relation = &relations[number];
    let reverse = relations.iter().position(|other| other.target_type == relation.source_type);
    let mode = random.one_of(&[NegativeMode::Binary, NegativeMode::Triplet]);
    let has_degrees = mode == NegativeMode::Triplet || reverse.is_some();
    let by = if has_degrees && random.flag() { NegativeWeights::Degree } else { NegativeWeights::Uniform };
    case.settings.negatives = Some(NegativeRule {
        mode,
        amount: 1 + random.below(4) as u32,
        strict: random.flag(),
        by,
        relation: number as u16,
        reverse: reverse.unwrap_or(0) as u16,
    });
    let mut node =
        |node_type: u16| random.below(u64::from(case.graph.node_counts[usize::from(node_type)])) as u32;
    case.seeds.seeds.clear();
    for row in 0..case.seeds.rows.len() as u32 {
        for (slot, node_type) in [relation.source_type, relation.target_type].into_iter().enumerate() {
            let seed = Seed { node_type, slot: slot as u16, row, node: node(node_type) };
            case.seeds.seeds.push(seed);
        }
    }
    case
}

/// The targets of the edges of a relation, by position.
fn targets_of_edges(relation: &TestRelation) -> Vec<u32> {
    let mut targets = Vec::new();
    for (target, ends) in (0..).zip(relation.offsets.windows(2)) {
        targets.extend((ends[0]..ends[1]).map(|_| target));
    }
    targets
}

/// Draws a node by the power 3/4 of its number of edges.
fn draw_by_degree(relation: &TestRelation, words: &mut Words) -> u32 {
    let targets = targets_of_edges(relation);
    loop {
        let position = loop {
            let word = u128::from(words.next_word()) + (u128::from(words.next_word()) << 32);
            let product = word * targets.len() as u128;
            if product % (1 << 64) >= (1 << 64) % targets.len() as u128 {
                break (product >> 64) as usize;
            }
        };
        let node = targets[position];
        let degree = targets.iter().filter(|other| **other == node).count() as u128;
        if u128::from(words.next_word()).pow(4) <= u128::MAX / degree {
            return node;
        }
    }
}

/// Returns the seeds with their negatives in the simplest way.
fn seeds_with_negatives(case: &TestCase) -> Result<Vec<Seed>, SampleError> {
    let rule = case.settings.negatives.expect("the case has negatives");
    let links = &case.graph.relations[usize::from(rule.relation)];
    let reverse = &case.graph.relations[usize::from(rule.reverse)];
    let (is_binary, by_degree) = (rule.mode == NegativeMode::Binary, rule.by == NegativeWeights::Degree);
    for (number, relation, is_used) in [(rule.relation, links, true), (rule.reverse, reverse, is_binary)] {
        if by_degree && is_used && relation.sources.is_empty() {
            return Err(SampleError::NoDegrees { relation: number });
        }
    }
    let count = |node_type: u16| case.graph.node_counts[usize::from(node_type)];
    let targets_of_links = targets_of_edges(links);
    let is_edge = |source: u32, target: u32| {
        targets_of_links.iter().zip(&links.sources).any(|edge| edge == (&target, &source))
    };
    let mut seeds = Vec::new();
    for (row, link) in (0..).zip(case.seeds.seeds.chunks(2)) {
        seeds.extend_from_slice(link);
        let (source, target) = (link[0].node, link[1].node);
        let is_negative = |pair: (u32, u32)| pair != (source, target) && !is_edge(pair.0, pair.1);
        for number in 0..rule.amount {
            let key = draw_key(&case.settings, &case.seeds.rows[row as usize], None);
            let mut words = Words::new(key, [source, target, number + (1 << 31), 0]);
            let mut pair = (source, target);
            for attempt in 1..=64 {
                if is_binary {
                    pair.0 = match by_degree {
                        true => draw_by_degree(reverse, &mut words),
                        false => words.below(count(links.source_type)),
                    };
                }
                pair.1 = match by_degree {
                    true => draw_by_degree(links, &mut words),
                    false => words.below(count(links.target_type)),
                };
                if !rule.strict || is_negative(pair) {
                    break;
                }
                if attempt == 64 {
                    let targets = count(links.target_type);
                    let next = (1..targets).map(|step| (pair.1 + step) % targets).find(|target| {
                        is_negative((pair.0, *target)) && (!by_degree || targets_of_links.contains(target))
                    });
                    let error = SampleError::NoNegative { relation: rule.relation, source_node: pair.0 };
                    pair.1 = next.ok_or(error)?;
                }
            }
            let slot = 2 + number as u16 * if is_binary { 2 } else { 1 };
            if is_binary {
                seeds.push(Seed { node_type: links.source_type, slot, row, node: pair.0 });
            }
            let slot = if is_binary { slot + 1 } else { slot };
            seeds.push(Seed { node_type: links.target_type, slot, row, node: pair.1 });
        }
    }
    Ok(seeds)
}

/// Samples a case, whose seeds and negatives may be impossible.
fn try_sample(case: &TestCase, seeds: &BatchSeeds<'_>) -> Result<SampledGraph, SampleError> {
    let relations: Vec<RelationView<'_>> = case.graph.relations.iter().map(TestRelation::view).collect();
    let graph = GraphView { node_counts: &case.graph.node_counts, relations: &relations };
    let mut sampled = SampledGraph::default();
    case.sampler().sample(&graph, seeds, &mut sampled).map(|()| sampled)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_sample_with_negatives_is_that_of_the_reference(key: u64) {
        let case = negative_case(key);
        let sampled = try_sample(&case, &case.seeds.view());
        let expected = seeds_with_negatives(&case).map(|seeds| {
            let rows = case.seeds.rows.clone();
            let excluded = case.seeds.excluded.clone();
            let graph = TestGraph { node_counts: case.graph.node_counts.clone(), relations: case.graph.relations.clone() };
            reference::sample(&TestCase { graph, settings: case.settings.clone(), seeds: TestSeeds { rows, seeds, excluded } })
        });
        prop_assert_eq!(sampled, expected);
    }

    /// The negatives of a link depend on its position, but not on the other rows of its batch.
    #[test]
    fn the_negatives_of_a_link_do_not_depend_on_its_batch(key: u64) {
        let mut case = negative_case(key);
        case.settings.disjoint = true;
        let Ok(whole) = seeds_with_negatives(&case) else { return Ok(()) };
        let rule = case.settings.negatives.expect("the case has negatives");
        let per_link = rule.seeds_per_link() as usize;
        for (row, expected) in whole.chunks(per_link).enumerate() {
            let link: Vec<Seed> =
                case.seeds.seeds[2 * row..2 * row + 2].iter().map(|seed| Seed { row: 0, ..*seed }).collect();
            let seeds = BatchSeeds { rows: &case.seeds.rows[row..=row], seeds: &link, excluded: &[] };
            let sampled = try_sample(&case, &seeds).expect("the batch has negatives");
            let nodes: Vec<u32> = sampled
                .seed_locals
                .iter()
                .zip(expected)
                .map(|(local, seed)| sampled.nodes[usize::from(seed.node_type)].ids[*local as usize])
                .collect();
            prop_assert_eq!(nodes, expected.iter().map(|seed| seed.node).collect::<Vec<_>>());
        }
    }
}

proptest! {
    /// Overwrites entries of a valid graph.
    #[test]
    fn invalid_arrays_do_not_cause_a_panic(
        key: u64, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<u32>()), 1..8),
    ) {
        let mut case = negative_case(key);
        let count = case.graph.relations.len();
        for (index, is_offset, value) in changes {
            let relation = &mut case.graph.relations[index.index(count)];
            if is_offset {
                *index.get_mut(&mut relation.offsets) = u64::from(value % 64);
            } else if !relation.sources.is_empty() {
                *index.get_mut(&mut relation.sources) = value;
            }
        }
        // The result is a sample or an error.
        drop(try_sample(&case, &case.seeds.view()));
    }
}

/// A graph with 6 sources and 5 targets. Source 0 has an edge to all targets, and source 1 to all but target 3.
fn dense_graph() -> TestGraph {
    let sources: [&[u32]; 5] = [&[0, 1], &[0, 1, 1], &[0, 1, 2, 3], &[0], &[0, 1]];
    let mut offsets = vec![0];
    offsets.extend(sources.iter().scan(0_u64, |end, row| {
        *end += row.len() as u64;
        Some(*end)
    }));
    let relation = TestRelation { offsets, sources: sources.concat(), ..TestRelation::star(0) };
    TestGraph { node_counts: vec![6, 5], relations: vec![relation] }
}

const TRIPLET: NegativeRule = NegativeRule {
    mode: NegativeMode::Triplet,
    amount: 4,
    strict: true,
    by: NegativeWeights::Uniform,
    relation: 0,
    reverse: 0,
};

fn link_case(rule: NegativeRule, resample: Resample, links: &[[u32; 2]], first_position: u64) -> TestCase {
    let mut seeds = TestSeeds::default();
    for (row, [source, target]) in (0_u32..).zip(links) {
        seeds.rows.push(SeedRow { epoch: 3, position: first_position + u64::from(row), time: 0 });
        seeds.seeds.push(Seed { node_type: 0, slot: 0, row, node: *source });
        seeds.seeds.push(Seed { node_type: 1, slot: 1, row, node: *target });
    }
    let settings = SamplingSettings {
        seed: 7,
        operator: 2,
        resample,
        negatives: Some(rule),
        disjoint: true,
        fanouts: vec![vec![Fanout::Limit(0)]],
        ..SamplingSettings::default()
    };
    TestCase { graph: dense_graph(), settings, seeds }
}

/// The negatives of each link, or the error.
fn negatives(case: &TestCase) -> Result<Vec<Vec<u32>>, SampleError> {
    let rule = case.settings.negatives.expect("the case has negatives");
    let sampled = try_sample(case, &case.seeds.view())?;
    // Trees are disjoint, so the nodes of each type are the seeds of the type.
    let mut next = [0; 2];
    let mut node = |node_type: usize| {
        next[node_type] += 1;
        sampled.nodes[node_type].ids[next[node_type] - 1]
    };
    let link = |_: &SeedRow| {
        node(0);
        node(1);
        let types = if rule.mode == NegativeMode::Binary { vec![0, 1] } else { vec![1] };
        types.repeat(rule.amount as usize).into_iter().map(&mut node).collect::<Vec<u32>>()
    };
    Ok(case.seeds.rows.iter().map(link).collect())
}

#[test]
fn a_strict_negative_is_found_if_there_is_one() {
    let found = negatives(&link_case(TRIPLET, Resample::Batch, &[[1, 0], [1, 3], [2, 2]], 0));
    let error = SampleError::NoNegative { relation: 0, source_node: 1 };
    assert_eq!(found, Err(error), "the only target without an edge is the target of the link");
    assert!(error.to_string().ends_with("so it has no strict negative; set `strict: false`"));
    let found = negatives(&link_case(TRIPLET, Resample::Batch, &[[1, 0], [1, 4]], 0)).expect("there is one");
    assert_eq!(found, [[3; 4], [3; 4]]);
    let of_all = negatives(&link_case(TRIPLET, Resample::Batch, &[[0, 0]], 0));
    assert_eq!(of_all, Err(SampleError::NoNegative { relation: 0, source_node: 0 }));
    let loose = NegativeRule { strict: false, ..TRIPLET };
    assert!(negatives(&link_case(loose, Resample::Batch, &[[0, 0]], 0)).is_ok());
    let binary = NegativeRule { mode: NegativeMode::Binary, amount: MAX_NEGATIVES, ..TRIPLET };
    let found = negatives(&link_case(binary, Resample::Batch, &[[0, 0]], 0)).expect("there are negatives");
    let sources = |row: &[u32]| row.chunks(2).map(|pair| pair[0]).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(sources(&found[0]), [1, 2, 3, 4, 5].into(), "source 0 has no negatives");
}

/// The examples in `docs/graphs.md`. Their values were computed by an independent program.
#[test]
fn the_documented_negatives_are_correct() {
    let links = [[2, 0], [5, 1]];
    let of = |rule: NegativeRule| negatives(&link_case(rule, Resample::Batch, &links, 4096)).expect("valid");
    let by_degree = NegativeRule { by: NegativeWeights::Degree, ..TRIPLET };
    let binary = NegativeRule { mode: NegativeMode::Binary, amount: 2, strict: false, ..TRIPLET };
    assert_eq!(of(TRIPLET), [[4, 3, 3, 3], [2, 2, 0, 3]]);
    assert_eq!(of(by_degree), [[3, 1, 3, 4], [2, 2, 3, 2]]);
    assert_eq!(of(binary), [[5, 4, 3, 0], [2, 2, 2, 1]]);
}

#[test]
fn a_link_keeps_its_negatives_if_they_are_not_drawn_again() {
    let rule = NegativeRule { amount: 20, strict: false, ..TRIPLET };
    let of = |resample: Resample, links: &[[u32; 2]], position: u64| {
        negatives(&link_case(rule, resample, links, position)).expect("valid")
    };
    let (batch, epoch) = (Resample::Batch, Resample::Epoch);
    assert_ne!(of(batch, &[[2, 0]], 0), of(batch, &[[2, 0]], 1));
    assert_eq!(of(epoch, &[[2, 0], [3, 1]], 0)[1], of(epoch, &[[3, 1]], 9)[0]);
    assert_ne!(of(epoch, &[[2, 0]], 0), of(epoch, &[[2, 1]], 0), "links have different negatives");
    assert_ne!(of(epoch, &[[2, 0]], 0), of(epoch, &[[3, 0]], 0));
    assert_ne!(of(epoch, &[[2, 0]], 0), of(Resample::Never, &[[2, 0]], 0));
}

#[test]
fn seeds_that_are_not_links_are_rejected() {
    let case = link_case(TRIPLET, Resample::Batch, &[[2, 0], [3, 1]], 0);
    let error = |change: fn(&mut Vec<Seed>)| {
        let mut seeds = case.seeds.seeds.clone();
        change(&mut seeds);
        try_sample(&case, &BatchSeeds { seeds: &seeds, ..case.seeds.view() }).unwrap_err()
    };
    assert_eq!(error(|seeds| seeds[2].slot = 1), SampleError::LinkSeeds { row: 1 });
    assert_eq!(error(|seeds| seeds[2].row = 0), SampleError::LinkSeeds { row: 1 });
    assert_eq!(error(|seeds| seeds.swap(0, 1)), SampleError::LinkSeeds { row: 0 });
    assert_eq!(error(|seeds| seeds.truncate(3)), SampleError::LinkSeeds { row: 0 });
    let by_degree = NegativeRule { by: NegativeWeights::Degree, mode: NegativeMode::Binary, ..TRIPLET };
    let case = TestCase {
        settings: SamplingSettings { negatives: Some(by_degree), ..case.settings },
        graph: case.graph,
        seeds: case.seeds,
    };
    assert_eq!(
        try_sample(&case, &case.seeds.view()).unwrap_err(),
        SampleError::ReverseRelation { relation: 0, reverse: 0 }
    );
    assert!(NeighborSampler::new(case.settings).is_ok());
}

#[test]
fn the_memory_for_the_next_batch_contains_the_negatives() {
    let rule = NegativeRule {
        mode: NegativeMode::Triplet,
        amount: 100,
        strict: false,
        by: NegativeWeights::Uniform,
        relation: 0,
        reverse: 0,
    };
    let relations = [RelationView {
        source_type: 0,
        target_type: 0,
        offsets: &[0; 4],
        sources: &[],
        weights: None,
        times: None,
    }];
    let graph = GraphView { node_counts: &[3], relations: &relations };
    let scope = DrawScope { seed: 0, operator: 0, resample: Resample::Batch };
    let rows = [SeedRow { epoch: 0, position: 0, time: 0 }];
    let seeds = [0, 1].map(|slot| Seed { node_type: 0, slot, row: 0, node: 0 });
    let links = BatchSeeds { rows: &rows, seeds: &seeds, excluded: &[] };
    let mut negatives = NegativeSeeds::default();
    assert_eq!(negatives.memory_bytes(), 0);
    let added = negatives.add(&rule, scope, &graph, &links).map(|with_negatives| with_negatives.seeds.len());
    assert_eq!(added, Ok(102));
    assert!(negatives.memory_bytes() >= 102 * size_of::<Seed>(), "{}", negatives.memory_bytes());
}
