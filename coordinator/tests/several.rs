//! Tests of several coordinators in one process: bootstrap, elections, leader transfer and membership changes.

#[path = "several/bench.rs"]
mod bench;

use std::collections::BTreeSet;
use std::time::Duration;

use feedline_data::ids::JobId;
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

async fn names(service: &dyn CoordinatorService) -> Vec<(JobId, String)> {
    let jobs = service.list_jobs().await.expect("it leads");
    jobs.into_iter().map(|job| (job.job, job.name)).collect()
}

#[tokio::test]
async fn a_new_leader_has_all_jobs_of_a_killed_one() {
    let mut bench = Bench::of(3).await;
    let first = bench.leader().await;
    let job = bench.service(first).open_job(spec("run")).await.unwrap();
    for (number, coordinator) in &bench.running {
        if *number != first {
            let refusal = coordinator.service().list_jobs().await.unwrap_err();
            assert_eq!(refusal.leader, Some(url(first)), "{refusal}");
        }
    }
    bench.kill(first);
    let second = bench.leader().await;
    assert_eq!(names(bench.service(second).as_ref()).await, [(job, "run".to_owned())]);
    let next = bench.service(second).open_job(spec("next")).await.unwrap();
    assert!(next > job, "ids are not given twice");
    bench.start(first).await;
    bench.kill(second);
    let third = bench.leader().await;
    assert_eq!(names(bench.service(third).as_ref()).await.len(), 2);
}

#[tokio::test]
async fn a_shutdown_transfers_leadership_first() {
    let mut bench = Bench::of(3).await;
    let first = bench.leader().await;
    let term = |bench: &Bench| bench.running.values().filter_map(|it| *it.leader().borrow()).next();
    let before = term(&bench);
    let ended = bench.running.remove(&first).expect("it runs");
    ended.shutdown().await.unwrap();
    assert_ne!(term(&bench), before, "another coordinator leads before the first one has stopped");
    bench.leader().await;
}

#[tokio::test]
async fn leadership_is_transferred_to_the_chosen_follower() {
    let bench = Bench::of(3).await;
    let first = bench.leader().await;
    let job = bench.service(first).open_job(spec("run")).await.unwrap();
    let members = bench.service(first).members().await.unwrap();
    // Among equally up-to-date followers, the leader itself would choose the last follower.
    let target = members.iter().find(|member| !member.is_leader).expect("two follow");
    let after = bench.service(first).transfer_leader(&target.id).await.unwrap();
    let leaders = |members: &[MemberStatus]| -> Vec<String> {
        members.iter().filter(|member| member.is_leader).map(|member| member.url.clone()).collect()
    };
    assert_eq!(leaders(&after), std::slice::from_ref(&target.url));
    let second = bench.leader_but(Some(first)).await;
    assert_eq!(url(second), target.url);
    assert_eq!(names(bench.service(second).as_ref()).await, [(job, "run".to_owned())]);
    let service = bench.service(second);
    // The client may have lost the reply.
    let repeated = service.transfer_leader(&target.id).await.unwrap();
    assert_eq!(leaders(&repeated), std::slice::from_ref(&target.url));
    for (id, said) in [
        (
            "00000000000000aa",
            "no coordinator has id 00000000000000aa; list the ids with `feedline members list`",
        ),
        ("second", "invalid id `second`: expected 16 hexadecimal digits"),
    ] {
        let refusal = service.transfer_leader(id).await.unwrap_err();
        assert!(refusal.message.contains(said), "{refusal}");
    }
}

#[tokio::test]
async fn coordinators_that_all_restart_at_other_addresses_elect_a_leader() {
    let mut bench = Bench::of(3).await;
    let leader = bench.leader().await;
    let job = bench.service(leader).open_job(spec("run")).await.unwrap();
    for number in 0..3 {
        bench.stop(number).await;
        bench.move_away(number);
    }
    bench.peers = (0..3).map(|number| bench.url_of(number)).collect();
    bench.start(0).await;
    bench.start(1).await;
    let leader = bench.leader().await;
    assert_eq!(names(bench.service(leader).as_ref()).await, [(job, "run".to_owned())]);
    let third = [bench.url_of(0), bench.url_of(1), url(2)];
    bench.has_members(&third).await;
    bench.start(2).await;
    bench.has_members(&bench.peers).await;
}

#[tokio::test]
async fn two_of_three_coordinators_restart_at_addresses_that_the_third_does_not_know() {
    let mut bench = Bench::of(3).await;
    let leader = bench.leader().await;
    let job = bench.service(leader).open_job(spec("run")).await.unwrap();
    for number in 0..2 {
        bench.stop(number).await;
        bench.move_away(number);
    }
    // The third keeps running with the old addresses in its --peers.
    bench.peers = (0..3).map(|number| bench.url_of(number)).collect();
    bench.start(0).await;
    let leader = bench.leader().await;
    assert_eq!(names(bench.service(leader).as_ref()).await, [(job, "run".to_owned())]);
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
    let second = bench.leader_but(Some(first)).await;
    let job = bench.service(second).open_job(spec("run")).await.unwrap();
    assert!(service.list_jobs().await.is_err(), "another leader has made decisions");
    bench.network.cut.lock().expect("nobody panics while holding it").clear();
    until(|| async { (service.list_jobs().await.unwrap_err().leader == Some(url(second))).then_some(()) })
        .await;
    assert_eq!(names(bench.service(second).as_ref()).await, [(job, "run".to_owned())]);
}

#[tokio::test]
async fn members_are_added_and_removed_one_at_a_time() {
    let mut bench = Bench::of(3).await;
    let first = bench.leader().await;
    let job = bench.service(first).open_job(spec("run")).await.unwrap();
    bench.peers.push(url(3));
    bench.start(3).await;
    let leader = bench.leader().await;
    let members = until(|| async { bench.running[&leader].service().add_member(&url(3)).await.ok() }).await;
    assert_eq!(members.iter().filter(|member| member.is_voter).count(), 4);
    let gone = (0..3).find(|number| *number != leader).expect("two others");
    bench.kill(gone);
    let members = bench.running[&leader].service().remove_member(&url(gone)).await.unwrap();
    assert_eq!(members.len(), 3);
    let refusal = bench.running[&leader].service().remove_member(&url(gone)).await.unwrap_err();
    assert_eq!(refusal.kind, ServiceErrorKind::NotFound);
    bench.kill(leader);
    let next = bench.leader().await;
    assert_eq!(
        names(bench.service(next).as_ref()).await,
        [(job, "run".to_owned())],
        "two of three are enough"
    );
}

#[tokio::test]
async fn a_coordinator_without_its_disk_is_another_member() {
    let mut bench = Bench::of(3).await;
    let leader = bench.leader().await;
    let lost = (0..3).find(|number| *number != leader).expect("two others");
    bench.kill(lost);
    std::fs::remove_dir_all(bench.folder.path().join(lost.to_string())).unwrap();
    bench.start(lost).await;
    let leader = bench.leader_but(Some(lost)).await;
    let members = bench.running[&leader].service();
    let refusal = members.add_member(&url(lost)).await.unwrap_err();
    assert!(refusal.message.contains("has lost its data directory"), "{refusal}");
    members.remove_member(&url(lost)).await.unwrap();
    // The coordinator also asks to join by itself.
    let members = until(|| async { members.add_member(&url(lost)).await.ok() }).await;
    assert_eq!(members.iter().filter(|member| member.is_voter).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_without_its_disk_replaces_its_former_self_without_a_command() {
    let mut bench = Bench::of(3).await;
    let leader = bench.leader().await;
    let job = bench.service(leader).open_job(spec("run")).await.unwrap();
    let lost = (leader + 1) % 3;
    let members = bench.service(leader).members().await.unwrap();
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
    let next = bench.leader().await;
    assert!(next != 7, "it was removed");
    assert_eq!(names(bench.service(next).as_ref()).await, [(job, "run".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn new_coordinators_join_a_single_one_without_a_command() {
    let mut bench = Bench::of(1).await;
    let job = {
        let leader = bench.leader().await;
        bench.service(leader).open_job(spec("run")).await.unwrap()
    };
    bench.peers = (0..3).map(url).collect();
    bench.start(1).await;
    bench.start(2).await;
    bench.has_voters(3, None).await;
    bench.stop(0).await;
    let leader = bench.leader().await;
    assert_eq!(names(bench.service(leader).as_ref()).await, [(job, "run".to_owned())]);
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
    let leader = bench.leader().await;
    let peers = std::mem::take(&mut bench.peers);
    bench.start(7).await;
    bench.peers = peers;
    let alone = bench.service(7);
    let job = until(|| async { alone.open_job(spec("its own")).await.ok() }).await;
    let members = bench.running[&leader].service();
    let refusal = until(|| async { members.add_member(&url(7)).await.err().filter(is_invalid) }).await;
    assert!(refusal.message.contains("belongs to another cluster"), "{refusal}");
    assert_eq!(names(alone.as_ref()).await, [(job, "its own".to_owned())]);
}

#[tokio::test]
async fn a_removal_that_would_lose_the_quorum_is_rejected() {
    let mut bench = Bench::of(3).await;
    let leader = bench.leader().await;
    let [gone, stays] = [(leader + 1) % 3, (leader + 2) % 3];
    bench.kill(gone);
    let members = bench.running[&leader].service();
    until(|| async {
        let known = members.members().await.ok()?;
        known.iter().any(|member| member.url == url(gone) && !member.is_reachable).then_some(())
    })
    .await;
    let refusal = members.remove_member(&url(stays)).await.unwrap_err();
    assert!(refusal.message.contains("would have no quorum"), "{refusal}");
    assert_eq!(members.remove_member(&url(gone)).await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_grows_to_five_coordinators_and_shrinks_to_one() {
    let mut bench = Bench::of(1).await;
    let leader = bench.leader().await;
    let job = bench.service(leader).open_job(spec("run")).await.unwrap();
    for count in [3, 5] {
        bench.peers = (0..count).map(url).collect();
        for number in count - 2..count {
            bench.start(number).await;
        }
        bench.has_voters(count as usize, None).await;
    }
    let leader = bench.leader().await;
    let silent = vec![url(0), url(1), "http://nowhere".to_owned()];
    let refusal = bench.service(leader).sync_members(silent).await.unwrap_err();
    assert!(refusal.message.contains("http://nowhere does not answer"), "{refusal}");
    assert!(refusal.message.contains("no coordinator was removed") && is_invalid(&refusal), "{refusal}");
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
    assert_eq!(names(bench.service(0).as_ref()).await, [(job, "run".to_owned())]);
}

#[tokio::test]
async fn a_coordinator_that_has_not_joined_stops_a_sync() {
    let mut bench = Bench::of(3).await;
    let leader = bench.leader().await;
    let peers = std::mem::take(&mut bench.peers);
    bench.start(7).await;
    bench.peers = peers;
    let refusal = bench.service(leader).sync_members(vec![url(leader), url(7)]).await.unwrap_err();
    assert!(refusal.message.contains("has not joined the cluster"), "{refusal}");
    assert_eq!(bench.service(leader).members().await.unwrap().len(), 3);
}

fn is_invalid(refusal: &ServiceError) -> bool {
    refusal.kind == ServiceErrorKind::Invalid
}
