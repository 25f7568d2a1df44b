//! Coordinators that join without a command, and that replace a member that has lost its disk.

use std::cell::Cell;

use super::*;

/// The ticks of 10 s and a little more.
const SILENCE_TICKS: u32 = 210;

impl Bench {
    fn join(&mut self, leader: u64, number: u64, url: &str) -> Result<(), String> {
        let now = self.now;
        let joined = self.member(leader).join(now, id(number), url);
        self.settle();
        joined.map_err(|refusal| refusal.message)
    }

    /// Starts a coordinator with an empty disk at an address.
    fn start_empty(&mut self, number: u64, url: String) {
        self.start_at(number, url, PersistedState::default());
    }

    fn start_at(&mut self, number: u64, url: String, kept: PersistedState) {
        let settings = RaftSettings { url, ..self.settings.clone() };
        let member = RaftNode::new(id(number), kept.clone(), settings, 10 + number).unwrap();
        self.places.insert(number, Place { member, kept, writes: VecDeque::new(), disk: Disk::Works });
    }

    /// Repeats the request of a coordinator at the current leader until the coordinator is a voter. Returns the ticks.
    fn join_until_voter(&mut self, number: u64, url: &str) -> u32 {
        for ticks in 0..1_000 {
            let leading: Vec<u64> = self.places.keys().copied().filter(|place| self.leads(*place)).collect();
            for leader in leading {
                // The leader names the reason, and the coordinator repeats its request.
                let _ = self.join(leader, number, url);
                if self.is_voter(leader, number) {
                    return ticks;
                }
            }
            self.tick(1);
        }
        panic!("{number} does not become a voter");
    }

    fn is_voter(&self, leader: u64, number: u64) -> bool {
        let member = &self.places[&leader].member;
        let views = member.member_views().unwrap_or_default();
        !member.is_joint() && views.iter().any(|view| view.id == id(number) && view.is_voter)
    }

    fn members(&self, number: u64) -> Vec<u64> {
        self.places[&number].member.members().ids().map(MemberId::get).collect()
    }
}

#[test]
fn coordinators_join_without_a_command() {
    let mut bench = Bench::of(1);
    bench.open(1, "run");
    // Both join at the same time.
    for number in 2..=3 {
        bench.start_empty(number, url(number));
        bench.join(1, number, &url(number)).unwrap();
        bench.join(1, number, &url(number)).expect("a request may be repeated");
    }
    bench.tick(20);
    assert_eq!(bench.places[&1].member.voters(), 3);
    assert!(bench.agrees());
    bench.places.remove(&1);
    bench.tick(40);
    bench.leader();
}

#[test]
fn only_the_leader_accepts_a_coordinator() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let follower = 1 + leader % 3;
    let refusal = bench.join(follower, 4, &url(4)).unwrap_err();
    assert!(refusal.contains(&url(leader)), "{refusal}");
}

#[test]
fn a_coordinator_replaces_a_silent_member_at_its_address() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let lost = 1 + leader % 3;
    bench.open(leader, "run");
    let old = bench.places.remove(&lost).expect("it runs").kept;
    bench.start_empty(4, url(lost));
    let refusal = bench.join(leader, 4, &url(lost)).unwrap_err();
    assert!(refusal.contains("belongs to coordinator") && refusal.contains("10 s"), "{refusal}");
    let ticks = bench.join_until_voter(4, &url(lost));
    assert!((190..=SILENCE_TICKS + 30).contains(&ticks), "{ticks} ticks");
    let expected: Vec<u64> = (1..=4).filter(|number| *number != lost).collect();
    assert_eq!(bench.members(leader), expected);
    assert_eq!(bench.places[&leader].member.voters(), 3);
    bench.tick(10);
    assert!(bench.agrees());
    // The replaced member returns with its disk.
    bench.start(lost, old);
    bench.tick(100);
    assert_eq!(bench.leader(), leader, "it has no vote");
    let term = bench.places[&leader].member.term();
    let refusal = bench.join(leader, lost, "at://elsewhere").unwrap_err();
    assert!(refusal.contains("was removed from the cluster"), "{refusal}");
    let adding = bench.change(leader, MembershipChange::Add { id: id(lost), url: url(lost) });
    assert_eq!(bench.changes[&adding].as_ref().unwrap_err().kind, ServiceErrorKind::Denied);
    // The other old member and the new one are a majority, and the replaced member does not count.
    bench.places.remove(&leader);
    bench.tick(60);
    let next = bench.leader();
    assert!(next != lost && bench.places[&next].member.term() > term);
    bench.places.retain(|number, _| *number == next || *number == lost);
    bench.tick(60);
    let asked = bench.open(next, "alone");
    bench.tick(20);
    assert!(!matches!(bench.replies.get(&asked), Some(Reply::Opened(_))), "one of three has no majority");
}

#[test]
fn a_member_that_answers_is_not_replaced() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let other = 1 + leader % 3;
    bench.start_empty(4, url(other));
    for _ in 0..SILENCE_TICKS {
        bench.tick(1);
        assert!(bench.join(leader, 4, &url(other)).is_err());
    }
    assert_eq!(bench.members(leader), [1, 2, 3]);
    assert!(bench.join(leader, 4, &url(leader)).is_err(), "the leader has this address itself");
}

#[test]
fn a_member_that_has_moved_is_not_replaced() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let moved = 1 + leader % 3;
    bench.member(leader).set_address(id(moved), "moved://away".to_owned());
    bench.start_empty(4, url(moved));
    bench.join_until_voter(4, &url(moved));
    assert_eq!(bench.members(leader), [1, 2, 3, 4]);
}

#[test]
fn a_member_that_returns_before_the_replacement_stays() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let lost = 1 + leader % 3;
    bench.suspended.insert(lost);
    bench.tick(SILENCE_TICKS);
    // The new coordinator is accepted, and does not answer yet.
    bench.join(leader, 4, &url(lost)).unwrap();
    bench.suspended.clear();
    bench.tick(4);
    bench.start_empty(4, url(lost));
    bench.tick(100);
    assert_eq!(bench.members(leader), [1, 2, 3, 4]);
    assert_eq!(bench.places[&leader].member.voters(), 3, "the new coordinator remains a learner");
    bench.places.remove(&lost);
    bench.tick(SILENCE_TICKS + 20);
    let leader = bench.leader();
    assert!(!bench.members(leader).contains(&lost) && bench.is_voter(leader, 4));
}

#[test]
fn a_disk_that_is_lost_twice_is_replaced_once() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let lost = 1 + leader % 3;
    bench.places.remove(&lost);
    bench.tick(SILENCE_TICKS);
    bench.join(leader, 4, &url(lost)).unwrap();
    // The learner loses its disk too.
    bench.start_empty(5, url(lost));
    bench.join_until_voter(5, &url(lost));
    let expected: Vec<u64> = [1, 2, 3, 5].into_iter().filter(|number| *number != lost).collect();
    assert_eq!(bench.members(leader), expected);
    assert_eq!(bench.places[&leader].member.removed_members().len(), 2);
}

/// All messages of the leader are lost after a number of messages, so that the leader changes at any point of a replacement.
#[test]
fn a_replacement_is_completed_by_the_next_leader() {
    for sent in 0..60_u32 {
        let mut bench = Bench::of(5);
        let first = bench.leader();
        let lost = 1 + first % 5;
        bench.places.remove(&lost);
        bench.start_empty(6, url(lost));
        bench.tick(SILENCE_TICKS);
        bench.join(first, 6, &url(lost)).unwrap();
        let left = Cell::new(sent);
        bench.stops =
            Box::new(move |message| message.from == first && left.replace(left.get().saturating_sub(1)) == 0);
        bench.tick(60);
        bench.stops = Box::new(|_| false);
        bench.tick(20);
        bench.join_until_voter(6, &url(lost));
        let leader = bench.leader();
        let expected: Vec<u64> = (1..=6).filter(|number| *number != lost).collect();
        assert_eq!(bench.members(leader), expected, "after {sent} messages");
        bench.tick(20);
        assert!(bench.agrees(), "after {sent} messages");
        assert!(bench.places.values().all(|place| !place.member.is_joint()));
    }
}

#[test]
fn a_coordinator_restarts_in_the_middle_of_a_replacement() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let (lost, other) = (1 + leader % 3, 1 + (leader + 1) % 3);
    bench.places.remove(&lost);
    bench.start_empty(4, url(lost));
    bench.tick(SILENCE_TICKS);
    bench.join(leader, 4, &url(lost)).unwrap();
    for _ in 0..20 {
        // The second half of the replacement is not proposed before the next tick.
        if !bench.places[&leader].member.is_joint() {
            bench.tick(1);
        }
    }
    assert!(bench.places[&leader].member.is_joint());
    let kept: Vec<(u64, PersistedState)> =
        [leader, other, 4].map(|number| (number, bench.places[&number].kept.clone())).into();
    bench.places.clear();
    for (number, state) in kept {
        bench.start_at(number, url(if number == 4 { lost } else { number }), state);
    }
    bench.tick(80);
    let leader = bench.leader();
    assert!(bench.is_voter(leader, 4) && !bench.members(leader).contains(&lost));
    assert!(bench.agrees());
}
