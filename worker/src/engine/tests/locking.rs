//! Threads that find the engine's lock held.

use futures::FutureExt;

use super::*;
use crate::engine::events::EngineEvent;
use crate::engine::lock::EVENTS_MAX;

#[tokio::test]
async fn waits_for_the_lock_are_measured() {
    let test = TestEngine::new(&lines(10), PLAIN, 1, 1, MIB).await;
    let engine = Arc::clone(&test.engine);
    assert_eq!(engine.lock_wait(), Duration::ZERO);
    // The other thread tries again until it has waited once.
    let waiter = std::thread::spawn(move || {
        while engine.lock_wait() == Duration::ZERO {
            engine.is_idle();
        }
    });
    while !waiter.is_finished() {
        let _state = test.engine.lock();
        std::thread::yield_now();
    }
    waiter.join().expect("the thread has waited");
}

#[tokio::test]
async fn an_event_waits_until_the_lock_is_released() {
    let test = TestEngine::new(&lines(10), PLAIN, 1, 1, MIB).await;
    let split = test.splits(0)[0];
    test.lease([split]);
    let state = test.engine.lock();
    let opened = test.open(split, 0);
    tokio::pin!(opened);
    assert!(opened.as_mut().now_or_never().is_none(), "the fetch is not open while the lock is held");
    drop(state);
    test.engine.state.has_events.notified().await;
    test.engine.apply_events();
    assert!(opened.await.is_some());
}

#[tokio::test]
async fn a_thread_waits_for_the_lock_if_too_many_events_wait() {
    let test = TestEngine::new(&lines(10), PLAIN, 1, 1, MIB).await;
    let event = || EngineEvent::SplitChanged(JobId(9), SplitRef { epoch: 0, ordinal: 0, stream: 0 });
    let state = test.engine.lock();
    for _ in 0..EVENTS_MAX {
        assert!(test.engine.state.add_event(event()).is_none(), "the queue has space");
    }
    let engine = Arc::clone(&test.engine);
    let late = std::thread::spawn(move || engine.post(event()));
    drop(state);
    late.join().expect("the thread gets the lock");
    assert!(test.engine.state.lock_for_events().is_none(), "all events are applied");
}
