//! Tests of restarts: a coordinator continues from its directory, which it locks.

use super::*;

async fn started(folder: &TempDir, life: u64) -> RunningCoordinator {
    let settings = CoordinatorSettings::durable(folder.path().join("log"), folder.path().join("index"));
    start(settings, life).await.unwrap()
}

#[tokio::test]
async fn a_restart_continues_a_job_at_its_position() {
    let folder = TempDir::new().unwrap();
    let coordinator = started(&folder, 1).await;
    let service = coordinator.service();
    let job = service.open_job(spec("run")).await.unwrap();
    let leases = prepare(service.as_ref()).await.leases;
    service.sync_consumer(consuming_from(job, 8)).await.unwrap();
    let (before, manifest) = (service.job_status(job).await.unwrap(), service.manifest(job).await.unwrap());
    coordinator.shutdown().await.unwrap();
    let refused = service.list_jobs().await.unwrap_err();
    assert_eq!(refused.kind, ServiceErrorKind::Unavailable);

    let coordinator = started(&folder, 2).await;
    let service = coordinator.service();
    let after = service.job_status(job).await.unwrap();
    assert_eq!((after.state, after.position), (JobState::Running, before.position));
    assert_eq!(service.manifest(job).await.unwrap(), manifest);
    assert_eq!(service.open_job(spec("run")).await.unwrap(), job, "the same job is joined");
    let plan = service.sync_consumer(consuming_from(job, 0)).await.unwrap();
    assert_eq!(plan.streams, [(0, StreamPosition { epoch: 0, row: 8 })], "an old position changes nothing");
    let kept = service.sync_worker(working()).await.unwrap().leases;
    let splits = |leases: &[feedline_data::messages::Lease]| -> Vec<_> {
        leases.iter().map(|lease| lease.split).filter(|split| split.ordinal >= 2).collect()
    };
    assert_eq!(splits(&kept)[..splits(&leases).len()], splits(&leases), "the worker keeps what it holds");
    coordinator.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_restart_during_a_preparation_uses_the_saved_index() {
    let folder = TempDir::new().unwrap();
    let coordinator = started(&folder, 1).await;
    coordinator.service().open_job(spec("first")).await.unwrap();
    prepare(coordinator.service().as_ref()).await;
    let second = coordinator.service().open_job(spec("second")).await.unwrap();
    coordinator.shutdown().await.unwrap();
    let coordinator = started(&folder, 2).await;
    let service = coordinator.service();
    let plan = service.sync_worker(working()).await.unwrap();
    let tasks = plan.tasks.iter().map(work).collect();
    let plan = service.sync_worker(WorkerReport { tasks, ..working() }).await.unwrap();
    assert_eq!(plan.tasks, [], "listing was enough");
    // The index is saved by a majority first.
    let mut told = service.sync_consumer(consuming_from(second, 0)).await.unwrap();
    while matches!(told.state, JobState::Preparing { .. }) {
        let report = ConsumerReport { plan_revision: told.revision, ..consuming_from(second, 0) };
        told = service.sync_consumer(report).await.unwrap();
    }
    assert_eq!(told.state, JobState::Running);
}

#[tokio::test]
async fn a_second_coordinator_in_the_same_directory_is_rejected() {
    let folder = TempDir::new().unwrap();
    let first = started(&folder, 1).await;
    let settings = CoordinatorSettings::durable(folder.path().join("log"), folder.path().join("index"));
    let Err(CoordinatorError::Log(LogError::Locked { .. })) = start(settings, 2).await else {
        panic!("two coordinators on one log")
    };
    first.shutdown().await.unwrap();
    started(&folder, 3).await.shutdown().await.unwrap();
}
