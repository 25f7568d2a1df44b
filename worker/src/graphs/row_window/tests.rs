//! Tests of the reads of waiting batches.

use proptest::prelude::*;

use super::*;

const NODES: FeatureRef = FeatureRef::Node { node_type: 0, feature: 0 };
const EDGES: FeatureRef = FeatureRef::Edge { relation: 0, feature: 0 };

fn budget() -> Arc<MemoryBudget> {
    Arc::new(MemoryBudget::new(1 << 20))
}

/// Windows of a job without features: a row has 8 bytes.
fn windows(limit_bytes: u64, batches: usize) -> Arc<RowWindows> {
    RowWindows::new(JobFeatures::new(), RowMemory::new(budget(), limit_bytes), batches)
}

fn rows(rows: impl IntoIterator<Item = u64>) -> MissingRows {
    MissingRows::from([(NODES, rows.into_iter().collect())])
}

#[test]
fn a_window_has_each_row_once() {
    let batches =
        vec![rows([1, 4, 9]), MissingRows::from([(EDGES, vec![4])]), rows([0, 4, 5]), MissingRows::new()];
    let expected = MissingRows::from([(NODES, vec![0, 1, 4, 5, 9]), (EDGES, vec![4])]);
    assert_eq!(merge(batches), expected);
}

#[tokio::test]
async fn batches_join_a_window_until_it_is_full_or_being_read() {
    let windows = windows(1 << 20, 2);
    let (first, second, third) = (windows.join(rows([1])), windows.join(rows([2])), windows.join(rows([3])));
    assert!(first.ptr_eq(&second));
    assert!(!first.ptr_eq(&third));
    let error = first.await.unwrap_err();
    assert_eq!(error, "the job has not loaded this feature; please report this");
    let fourth = windows.join(rows([4]));
    assert!(third.ptr_eq(&fourth));
    third.await.unwrap_err();
    let fifth = windows.join(rows([5]));
    assert!(!fourth.ptr_eq(&fifth), "the window has been read");
    drop(fifth);
    let sixth = windows.join(MissingRows::new());
    assert!(sixth.await.unwrap().features.is_empty(), "a window without batches is replaced");
}

#[tokio::test]
async fn a_window_is_limited_in_bytes() {
    let windows = windows(8 << 10, 100);
    let large = || rows(0..800);
    assert!(!windows.join(large()).ptr_eq(&windows.join(large())));
    let message = windows.fetch(rows(0..100_000)).await.unwrap_err();
    assert!(
        message.starts_with("a batch needs 1 MiB of rows of features that are not in memory"),
        "{message}"
    );
}

#[tokio::test]
async fn rows_wait_for_the_memory_of_earlier_rows() {
    let memory = RowMemory::new(budget(), 10 << 10);
    let first = memory.acquire(6 << 10).await.unwrap();
    let mut second = Box::pin(memory.acquire(6 << 10));
    assert!((&mut second).now_or_never().is_none());
    drop(first);
    drop(second.await.unwrap());
    let large = memory.acquire(1 << 40).await.unwrap();
    assert!(memory.acquire(1).now_or_never().is_none(), "a larger set is alone in memory");
    drop(large);
}

proptest! {
    #[test]
    fn merged_rows_are_the_union(batches in prop::collection::vec(prop::collection::btree_set(0_u64..50, 0..20), 0..6)) {
        let union: std::collections::BTreeSet<u64> = batches.iter().flatten().copied().collect();
        let merged = merge(batches.into_iter().map(rows).collect());
        let found = merged.get(&NODES).cloned().unwrap_or_default();
        prop_assert_eq!(found, union.into_iter().collect::<Vec<u64>>());
    }
}
