//! Tests of several coordinators in one process: bootstrap, elections, leader transfer and membership changes.

#[path = "several/bench.rs"]
mod bench;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use feedline_data::messages::{JobSpec, ServiceError, ServiceErrorKind};
use feedline_data::pipeline::{Pipeline, Source};
use feedline_proto::{CoordinatorService, MemberInfo, MemberStatus};
use tokio::time::Instant;

use self::bench::{Bench, until, url};

fn spec(name: &str) -> JobSpec {
    let pipeline =
        Pipeline::builder("p").source(Source::text("data/*")).batch(4).build().expect("it is sound");
    JobSpec { name: name.to_owned(), ..JobSpec::new(pipeline) }
}

#[tokio::test]
async fn a_new_leader_has_all_jobs_of_a_killed_one() {
    let mut bench = Bench::of(3).await;
    let job = bench.open(spec("run")).await;
    let first = bench.settled_leader().await;
    bench.kill(first);
    assert_eq!(bench.jobs().await, [(job, "run".to_owned())]);
    let next = bench.open(spec("next")).await;
    assert!(next > job, "ids are not given twice");
    bench.start(first).await;
    let second = bench.leader().await;
    bench.kill(second);
    assert_eq!(bench.jobs().await.len(), 2);
}

#[tokio::test]
async fn a_shutdown_transfers_leadership_first() {
    let mut bench = Bench::of(3).await;
    let first = bench.settled_leader().await;
    let ended = bench.running.remove(&first).expect("it runs");
    let known = ended.leader();
    let own = *known.borrow();
    assert!(own.is_some(), "it leads");
    ended.shutdown().await.unwrap();
    assert_ne!(*known.borrow(), own, "it gives up leadership before it stops");
    bench.leader().await;
}

#[tokio::test]
async fn leadership_is_transferred_to_the_chosen_follower() {
    let bench = Bench::of(3).await;
    let job = bench.open(spec("run")).await;
    let leaders = |members: &[MemberStatus]| -> Vec<String> {
        members.iter().filter(|member| member.is_leader).map(|member| member.url.clone()).collect()
    };
    // An election at the same time may prevent or undo a transfer. Another transfer is then requested.
    until(|| async {
        let first = bench.leader().await;
        let members = bench.service(first).members().await.ok()?;
        // Among equally up-to-date followers, the leader itself would choose the last follower.
        let target = members.iter().find(|member| !member.is_leader)?;
        let after = bench.service(first).transfer_leader(&target.id).await.ok()?;
        assert_eq!(leaders(&after), std::slice::from_ref(&target.url));
        let second = bench.leader_but(Some(first)).await;
        // The client may have lost the reply.
        let repeated = bench.service(second).transfer_leader(&target.id).await.ok()?;
        assert_eq!(leaders(&repeated), std::slice::from_ref(&target.url));
        (url(second) == target.url).then_some(())
    })
    .await;
    assert_eq!(bench.jobs().await, [(job, "run".to_owned())]);
    for (id, said) in [
        (
            "00000000000000aa",
            "no coordinator has id 00000000000000aa; list the ids with `feedline members list`",
        ),
        ("second", "invalid id `second`: expected 16 hexadecimal digits"),
    ] {
        bench.refused(said, |service| async move { service.transfer_leader(id).await }).await;
    }
}

#[tokio::test]
async fn coordinators_that_all_restart_at_other_addresses_elect_a_leader() {
    let mut bench = Bench::of(3).await;
    let job = bench.open(spec("run")).await;
    for number in 0..3 {
        bench.stop(number).await;
        bench.move_away(number);
    }
    bench.peers = (0..3).map(|number| bench.url_of(number)).collect();
    bench.start(0).await;
    bench.start(1).await;
    assert_eq!(bench.jobs().await, [(job, "run".to_owned())]);
    let third = [bench.url_of(0), bench.url_of(1), url(2)];
    bench.has_members(&third).await;
    bench.start(2).await;
    bench.has_members(&bench.peers).await;
}

#[tokio::test]
async fn two_of_three_coordinators_restart_at_addresses_that_the_third_does_not_know() {
    let mut bench = Bench::of(3).await;
    let job = bench.open(spec("run")).await;
    for number in 0..2 {
        bench.stop(number).await;
        bench.move_away(number);
    }
    // The third keeps running with the old addresses in its --peers.
    bench.peers = (0..3).map(|number| bench.url_of(number)).collect();
    bench.start(0).await;
    assert_eq!(bench.jobs().await, [(job, "run".to_owned())]);
    bench.start(1).await;
    bench.has_members(&bench.peers).await;
    bench.kill(2);
    bench.leader().await;
}

#[tokio::test]
async fn a_disconnected_leader_sends_no_replies() {
    let bench = Bench::of(3).await;
    let first = bench.leader().await;
    bench.network.cut.lock().expect("nobody panics while holding it").insert(url(first));
    let service = bench.service(first);
    until(|| async { service.list_jobs().await.is_err().then_some(()) }).await;
    bench.leader_but(Some(first)).await;
    let job = bench.open(spec("run")).await;
    assert!(service.list_jobs().await.is_err(), "another leader has made decisions");
    bench.network.cut.lock().expect("nobody panics while holding it").clear();
    bench.settled_leader().await;
    assert_eq!(bench.jobs().await, [(job, "run".to_owned())]);
}

#[tokio::test]
async fn members_are_added_and_removed_one_at_a_time() {
    let mut bench = Bench::of(3).await;
    let job = bench.open(spec("run")).await;
    bench.peers.push(url(3));
    bench.start(3).await;
    let members = bench.accepted(|service| async move { service.add_member(&url(3)).await }).await;
    assert_eq!(members.iter().filter(|member| member.is_voter).count(), 4);
    let leader = bench.leader().await;
    let gone = (0..3).find(|number| *number != leader).expect("two others");
    bench.kill(gone);
    assert_eq!(bench.remove(&url(gone)).await.len(), 3);
    let unknown = format!("no member has address {}", url(gone));
    let refusal =
        bench.refused(&unknown, |service| async move { service.remove_member(&url(gone)).await }).await;
    assert_eq!(refusal.kind, ServiceErrorKind::NotFound);
    let leader = bench.leader().await;
    bench.kill(leader);
    assert_eq!(bench.jobs().await, [(job, "run".to_owned())], "two of three are enough");
}

#[tokio::test]
async fn a_coordinator_without_its_disk_is_another_member() {
    let mut bench = Bench::of(3).await;
    let leader = bench.leader().await;
    let lost = (0..3).find(|number| *number != leader).expect("two others");
    bench.kill(lost);
    std::fs::remove_dir_all(bench.folder.path().join(lost.to_string())).unwrap();
    bench.start(lost).await;
    let add = |service: Arc<dyn CoordinatorService>| async move { service.add_member(&url(lost)).await };
    bench.refused("has lost its data directory", add).await;
    bench.remove(&url(lost)).await;
    // The coordinator also asks to join by itself.
    let members = bench.accepted(add).await;
    assert_eq!(members.iter().filter(|member| member.is_voter).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_without_its_disk_replaces_its_former_self_without_a_command() {
    let mut bench = Bench::of(3).await;
    let job = bench.open(spec("run")).await;
    let lost = (bench.leader().await + 1) % 3;
    let members = bench.accepted(|service| async move { service.members().await }).await;
    let old = members.into_iter().find(|member| member.url == url(lost)).expect("it is a member").id;
    bench.stop(lost).await;
    let folder = |number: u32| bench.folder.path().join(number.to_string());
    std::fs::rename(folder(lost), folder(7)).unwrap();
    let began = Instant::now();
    bench.start(lost).await;
    bench.has_voters(3, Some(old.as_str())).await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // The former disk returns at another address.
    bench.peers.push(url(7));
    bench.start(7).await;
    let from = MemberInfo {
        id: u64::from_str_radix(&old, 16).unwrap(),
        has_state: true,
        url: url(7),
        incarnation: bench.lives,
    };
    for (number, coordinator) in bench.running.iter().filter(|(number, _)| **number != 7) {
        let peer = coordinator.peer_service();
        let is_denied = |result: Result<(), ServiceError>| {
            result.is_err_and(|refusal| refusal.kind == ServiceErrorKind::Denied)
        };
        until(|| async { is_denied(peer.introduce(from.clone()).await.map(|_| ())).then_some(()) }).await;
        assert!(is_denied(peer.join(from.clone()).await), "{number} accepts it");
        assert!(is_denied(peer.deliver(from.clone(), Vec::new()).await), "{number} reads its messages");
    }
    bench.has_voters(3, Some(old.as_str())).await;
    let leader = bench.leader().await;
    bench.stop(leader).await;
    assert_eq!(bench.jobs().await, [(job, "run".to_owned())]);
    assert!(bench.leader().await != 7, "it was removed");
}

#[tokio::test(start_paused = true)]
async fn new_coordinators_join_a_single_one_without_a_command() {
    let mut bench = Bench::of(1).await;
    let job = bench.open(spec("run")).await;
    bench.peers = (0..3).map(url).collect();
    bench.start(1).await;
    bench.start(2).await;
    bench.has_voters(3, None).await;
    bench.stop(0).await;
    assert_eq!(bench.jobs().await, [(job, "run".to_owned())]);
}

#[tokio::test]
async fn requests_wait_for_a_majority() {
    let mut bench = Bench::of(0).await;
    bench.peers = (0..3).map(url).collect();
    bench.start(0).await;
    let refusal = bench.service(0).list_jobs().await.unwrap_err();
    assert!(refusal.message.contains("is waiting for the other coordinators in --peers"), "{refusal}");
    bench.start(1).await;
    bench.start(2).await;
    let leader = bench.leader().await;
    for number in 0..3 {
        if number != leader {
            bench.kill(number);
        }
    }
    let service = bench.service(leader);
    service.open_job(spec("run")).await.expect_err("nobody else can keep it");
}

#[tokio::test]
async fn a_coordinator_of_another_cluster_is_rejected() {
    let mut bench = Bench::of(3).await;
    let other = bench.start_alone(7).await;
    let alone = other.service();
    let job = until(|| async { alone.open_job(spec("its own")).await.ok() }).await;
    let add = |service: Arc<dyn CoordinatorService>| async move { service.add_member(&url(7)).await };
    let refusal = bench.refused("belongs to another cluster", add).await;
    assert_eq!(refusal.kind, ServiceErrorKind::Invalid);
    let jobs = until(|| async { alone.list_jobs().await.ok() }).await;
    assert_eq!(jobs.iter().map(|job| (job.job, job.name.as_str())).collect::<Vec<_>>(), [(job, "its own")]);
}

#[tokio::test]
async fn a_removal_that_would_lose_the_quorum_is_rejected() {
    let mut bench = Bench::of(3).await;
    let gone = (bench.leader().await + 1) % 3;
    bench.kill(gone);
    until(|| async {
        let leader = bench.leader().await;
        let stays = bench.running.keys().copied().find(|number| *number != leader)?;
        let members = bench.service(leader).members().await.ok()?;
        if members.iter().all(|member| member.url != url(gone) || member.is_reachable) {
            return None;
        }
        let result = bench.service(leader).remove_member(&url(stays)).await;
        let refusal = result.expect_err("no coordinator accepts it");
        refusal.message.contains("would have no quorum").then_some(())
    })
    .await;
    assert_eq!(bench.remove(&url(gone)).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_grows_to_five_coordinators_and_shrinks_to_one() {
    let mut bench = Bench::of(1).await;
    let job = bench.open(spec("run")).await;
    for count in [3, 5] {
        bench.peers = (0..count).map(url).collect();
        for number in count - 2..count {
            bench.start(number).await;
        }
        bench.has_voters(count as usize, None).await;
    }
    let silent = [url(0), url(1), "http://nowhere".to_owned()];
    let refusal = bench
        .refused("http://nowhere does not answer", |service| {
            let silent = silent.to_vec();
            async move { service.sync_members(silent).await }
        })
        .await;
    assert!(refusal.message.contains("no coordinator was removed"), "{refusal}");
    assert_eq!(refusal.kind, ServiceErrorKind::Invalid);
    bench.has_voters(5, None).await;
    for count in [3, 1] {
        let urls: Vec<String> = (0..count).map(url).collect();
        // The leader may be among the coordinators to remove, and then another coordinator is asked.
        for _ in ["first", "repeated"] {
            let members = bench.sync(&urls).await;
            let left: BTreeSet<&String> = members.iter().map(|member| &member.url).collect();
            assert_eq!(left, urls.iter().collect::<BTreeSet<&String>>());
        }
        bench.has_voters(count as usize, None).await;
        for number in count..count + 2 {
            bench.stop(number).await;
        }
    }
    assert_eq!(bench.leader().await, 0);
    assert_eq!(bench.jobs().await, [(job, "run".to_owned())]);
}

#[tokio::test]
async fn a_coordinator_that_has_not_joined_stops_a_sync() {
    let mut bench = Bench::of(3).await;
    let leader = bench.leader().await;
    let _other = bench.start_alone(7).await;
    bench
        .refused("has not joined the cluster", |service| async move {
            service.sync_members(vec![url(leader), url(7)]).await
        })
        .await;
    let members = bench.accepted(|service| async move { service.members().await }).await;
    assert_eq!(members.len(), 3);
}
