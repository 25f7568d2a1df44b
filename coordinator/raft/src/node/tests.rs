//! Tests of several members with disks that hang or fail.

use std::collections::{BTreeSet, VecDeque};

use feedline_cluster::RequestId;
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::{Pipeline, Source};
use raft::eraftpb::{Message, MessageType};

use super::*;
use crate::effects::MembershipChange;

mod addresses;
mod joining;
mod large_jobs;
mod leader_transfer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disk {
    Works,
    Hangs,
    Refuses,
}

struct Place {
    member: RaftNode,
    kept: PersistedState,
    writes: VecDeque<LogWrite>,
    disk: Disk,
}

impl Place {
    /// Writes the queued data. Returns whether anything was written.
    fn write(&mut self, now: MonotonicTime) -> bool {
        if self.disk != Disk::Works || self.writes.is_empty() {
            return false;
        }
        for write in self.writes.drain(..) {
            let number = write.number();
            self.kept.apply(write);
            self.member.on_written(now, number);
        }
        true
    }
}

/// Members by id. Messages arrive immediately.
struct Bench {
    places: BTreeMap<u64, Place>,
    settings: RaftSettings,
    now: MonotonicTime,
    requests: RequestId,
    /// Members without a network and with stopped clocks.
    suspended: BTreeSet<u64>,
    /// Selects messages that are lost.
    stops: Box<dyn Fn(&Message) -> bool>,
    stopped: Vec<Message>,
    replies: BTreeMap<RequestId, Reply>,
    changes: BTreeMap<RequestId, Result<Members, ServiceError>>,
}

fn id(number: u64) -> MemberId {
    MemberId::new(number).unwrap()
}

fn url(number: u64) -> String {
    format!("at://{number}")
}

fn is_timeout_now(message: &Message) -> bool {
    message.get_msg_type() == MessageType::MsgTimeoutNow
}

fn is_vote(message: &Message) -> bool {
    message.get_msg_type() == MessageType::MsgRequestVote
}

impl Bench {
    fn of(count: u64) -> Self {
        Self::with(count, RaftSettings::default())
    }

    fn with(count: u64, settings: RaftSettings) -> Self {
        let mut bench = Self {
            places: BTreeMap::new(),
            settings,
            now: MonotonicTime::default(),
            requests: 0,
            suspended: BTreeSet::new(),
            stops: Box::new(|_| false),
            stopped: Vec::new(),
            replies: BTreeMap::new(),
            changes: BTreeMap::new(),
        };
        let members = Members((1..=count).map(|number| (id(number), url(number))).collect());
        for number in 1..=count {
            bench.start(number, PersistedState::bootstrap(&members));
        }
        bench.tick(40);
        bench
    }

    fn start(&mut self, number: u64, kept: PersistedState) {
        let settings = RaftSettings { url: url(number), ..self.settings.clone() };
        let member = RaftNode::new(id(number), kept.clone(), settings, 10 + number).unwrap();
        self.places.insert(number, Place { member, kept, writes: VecDeque::new(), disk: Disk::Works });
    }

    fn member(&mut self, number: u64) -> &mut RaftNode {
        &mut self.places.get_mut(&number).expect("it runs").member
    }

    fn set_disk(&mut self, number: u64, disk: Disk) {
        self.places.get_mut(&number).expect("it runs").disk = disk;
    }

    /// Delivers messages and finishes writes until the members are idle.
    fn settle(&mut self) {
        loop {
            let mut messages = Vec::new();
            let mut goes_on = false;
            for (_, place) in self.places.iter_mut().filter(|(number, _)| !self.suspended.contains(*number)) {
                let effects = place.member.effects().unwrap();
                messages.extend(effects.messages);
                place.writes.extend(effects.writes);
                self.replies.extend(effects.replies);
                self.changes.extend(effects.membership_results);
                goes_on |= place.write(self.now);
            }
            for message in messages {
                if (self.stops)(&message) {
                    self.stopped.push(message);
                } else {
                    goes_on |= self.deliver(message);
                }
            }
            if !goes_on {
                return;
            }
        }
    }

    /// Delivers a message. Returns whether a member received it.
    fn deliver(&mut self, message: Message) -> bool {
        let is_lost = self.suspended.contains(&message.to);
        let Some(place) = self.places.get_mut(&message.to).filter(|_| !is_lost) else { return false };
        place.member.receive(self.now, message);
        true
    }

    fn tick(&mut self, times: u32) {
        for _ in 0..times {
            self.now.real += self.settings.tick_ms;
            self.now.cluster = self.now.real;
            for (_, place) in self.places.iter_mut().filter(|(number, _)| !self.suspended.contains(*number)) {
                if place.disk == Disk::Refuses && !place.writes.is_empty() {
                    place.member.on_write_failed(self.now);
                }
                place.member.tick(self.now);
                place.member.decide(self.now);
            }
            self.settle();
        }
    }

    fn leads(&self, number: u64) -> bool {
        self.places[&number].member.role() == (Role::Leader { serving: true })
    }

    /// The leader of the latest term.
    fn leader(&self) -> u64 {
        let leading = self.places.keys().copied().filter(|number| self.leads(*number));
        leading.max_by_key(|number| self.places[number].member.term()).expect("somebody leads")
    }

    fn open(&mut self, number: u64, name: &str) -> RequestId {
        self.requests += 1;
        let pipeline = Pipeline::builder("p").source(Source::text("data/*")).batch(4).build().unwrap();
        let spec = Box::new(JobSpec { name: name.to_owned(), ..JobSpec::new(pipeline) });
        let (now, request) = (self.now, self.requests);
        let member = self.member(number);
        member.take_input(now, Input::OpenJob { request, spec, saved_index: None.into() });
        member.decide(now);
        self.settle();
        request
    }

    fn change(&mut self, number: u64, change: MembershipChange) -> RequestId {
        self.requests += 1;
        let (now, request) = (self.now, self.requests);
        self.member(number).change_members(now, request, change);
        self.settle();
        request
    }

    /// Whether all members have the same state.
    fn agrees(&self) -> bool {
        let states: Vec<_> = self.places.values().map(|place| place.member.snapshot()).collect();
        states.windows(2).all(|pair| pair[0] == pair[1])
    }
}

#[test]
fn a_leader_with_a_hung_disk_transfers_leadership() {
    let mut bench = Bench::of(3);
    let first = bench.leader();
    bench.set_disk(first, Disk::Hangs);
    let asked = bench.open(first, "run");
    assert!(!bench.replies.contains_key(&asked), "it is not on its own disk");
    bench.tick(24);
    let second = bench.leader();
    assert_ne!(first, second);
    assert!(!bench.leads(first));
    assert!(matches!(bench.replies[&asked], Reply::Rejected(_)), "{:?}", bench.replies[&asked]);
    let again = bench.open(second, "run");
    assert!(matches!(bench.replies[&again], Reply::Opened(_)), "two of three keep it");
    bench.set_disk(first, Disk::Works);
    bench.tick(40);
    assert!(bench.agrees());
}

#[test]
fn a_leader_that_cannot_write_steps_down_without_a_successor() {
    let mut bench = Bench::of(3);
    let first = bench.leader();
    bench.stops = Box::new(is_timeout_now);
    bench.set_disk(first, Disk::Hangs);
    bench.open(first, "run");
    bench.tick(30);
    assert_eq!(bench.leader(), first);
    bench.tick(60);
    assert_ne!(bench.leader(), first);
    assert!(!bench.leads(first));
}

#[test]
fn a_leader_with_a_failing_disk_transfers_leadership_and_rejoins() {
    let mut bench = Bench::of(3);
    let first = bench.leader();
    bench.set_disk(first, Disk::Refuses);
    bench.open(first, "run");
    bench.tick(6);
    let second = bench.leader();
    assert_ne!(first, second);
    bench.open(second, "next");
    bench.set_disk(first, Disk::Works);
    bench.tick(40);
    assert!(bench.agrees());
    bench.places.remove(&second);
    bench.tick(40);
    bench.leader();
}

#[test]
fn a_member_continues_after_a_failed_compaction() {
    let mut bench = Bench::of(1);
    bench.set_disk(1, Disk::Refuses);
    bench.member(1).snapshot_due = true;
    bench.tick(2);
    assert!(bench.member(1).cannot_write());
    bench.set_disk(1, Disk::Works);
    bench.tick(1);
    let asked = bench.open(1, "run");
    assert!(matches!(bench.replies.get(&asked), Some(Reply::Opened(_))), "its disk works again");
}

#[test]
fn a_single_voter_keeps_leading_with_a_failing_disk() {
    let mut bench = Bench::of(1);
    bench.set_disk(1, Disk::Refuses);
    let asked = bench.open(1, "run");
    bench.tick(100);
    assert!(bench.leads(1) && !bench.replies.contains_key(&asked));
    bench.set_disk(1, Disk::Hangs);
    bench.tick(100);
    bench.set_disk(1, Disk::Works);
    bench.tick(1);
    assert!(matches!(bench.replies[&asked], Reply::Opened(_)));
}

#[test]
fn a_hung_follower_ignores_messages() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let hung = 1 + leader % 3;
    bench.set_disk(hung, Disk::Hangs);
    bench.open(leader, "run");
    bench.tick(40);
    let waiting = bench.places[&hung].writes.len();
    for number in 0..30 {
        bench.open(leader, &format!("run {number}"));
        bench.tick(4);
    }
    assert_eq!(bench.places[&hung].writes.len(), waiting);
    bench.set_disk(hung, Disk::Works);
    bench.tick(40);
    assert!(bench.agrees());
    assert_eq!(bench.leader(), leader, "nobody was disturbed");
}

#[test]
fn a_retiring_leader_repeats_the_transfer_until_it_succeeds() {
    let mut bench = Bench::of(3);
    let first = bench.leader();
    bench.stops = Box::new(is_timeout_now);
    let now = bench.now;
    assert!(bench.member(first).retire(now));
    bench.settle();
    bench.tick(4);
    assert_eq!(bench.leader(), first);
    bench.stops = Box::new(|_| false);
    bench.tick(12);
    assert_ne!(bench.leader(), first);
}

#[test]
fn a_retiring_member_does_not_become_the_leader() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let ending = 1 + leader % 3;
    let now = bench.now;
    assert!(!bench.member(ending).retire(now), "it does not lead");
    let mut invitation = Message::default();
    invitation.set_msg_type(MessageType::MsgTimeoutNow);
    (invitation.from, invitation.to) = (leader, ending);
    invitation.term = bench.places[&leader].member.term();
    bench.deliver(invitation);
    bench.tick(20);
    assert_eq!(bench.leader(), leader);
}

#[test]
fn an_unreachable_learner_can_be_removed() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let adding = bench.change(leader, MembershipChange::Add { id: id(4), url: url(4) });
    bench.tick(10);
    let other = bench.change(leader, MembershipChange::Add { id: id(5), url: url(5) });
    assert!(bench.changes[&other].is_err(), "one at a time");
    let removing = bench.change(leader, MembershipChange::Remove { id: id(4) });
    bench.tick(2);
    assert_eq!(bench.changes[&removing].as_ref().map(|members| members.0.len()), Ok(3));
    let refusal = bench.changes[&adding].as_ref().unwrap_err();
    assert!(refusal.message.contains("removed before it became a voter"), "{refusal}");
}

#[test]
fn a_removal_waits_for_an_addition_in_progress() {
    let mut bench = Bench::of(1);
    bench.set_disk(1, Disk::Hangs);
    bench.change(1, MembershipChange::Add { id: id(2), url: url(2) });
    let early = bench.change(1, MembershipChange::Remove { id: id(2) });
    let refusal = bench.changes[&early].as_ref().unwrap_err();
    assert!(refusal.message.contains("retry after that change has completed"), "{refusal}");
    bench.set_disk(1, Disk::Works);
    bench.tick(2);
    let removing = bench.change(1, MembershipChange::Remove { id: id(2) });
    bench.tick(2);
    assert_eq!(bench.changes[&removing].as_ref().map(|members| members.0.len()), Ok(1));
}

#[test]
fn the_remaining_one_of_two_members_restarts_alone() {
    let mut bench = Bench::of(2);
    let left = bench.leader();
    let removing = bench.change(left, MembershipChange::Remove { id: id(3 - left) });
    assert_eq!(bench.changes[&removing].as_ref().map(|members| members.0.len()), Ok(1));
    let kept = bench.places[&left].kept.clone();
    bench.places.clear();
    bench.start(left, kept);
    bench.tick(40);
    assert!(bench.leads(left), "the other was gone for good");
}

#[test]
fn a_learner_becomes_a_voter_once_it_has_caught_up() {
    let mut bench = Bench::of(1);
    bench.open(1, "run");
    let adding = bench.change(1, MembershipChange::Add { id: id(2), url: url(2) });
    bench.start(2, PersistedState::default());
    bench.tick(20);
    assert_eq!(bench.changes[&adding].as_ref().map(|members| members.0.len()), Ok(2));
    let now = bench.now;
    assert!(bench.member(1).retire(now));
    bench.settle();
    bench.tick(4);
    assert_eq!(bench.leader(), 2);
    let removing = bench.change(2, MembershipChange::Remove { id: id(1) });
    bench.tick(2);
    assert_eq!(bench.changes[&removing].as_ref().map(|members| members.0.len()), Ok(1));
    bench.places.remove(&1);
    let asked = bench.open(2, "alone");
    assert!(matches!(bench.replies[&asked], Reply::Opened(_)));
}

#[test]
fn a_deposed_leader_does_not_confirm_a_removal() {
    let mut bench = Bench::of(3);
    let first = bench.leader();
    bench.suspended.insert(first);
    bench.tick(40);
    let second = bench.leader();
    assert_ne!(first, second);
    bench.start(4, PersistedState::default());
    let adding = bench.change(second, MembershipChange::Add { id: id(4), url: url(4) });
    bench.tick(20);
    assert!(bench.changes[&adding].is_ok());
    assert!(bench.leads(first), "it has not heard of it");
    let removing = bench.change(first, MembershipChange::Remove { id: id(4) });
    bench.suspended.clear();
    bench.tick(20);
    assert!(bench.changes[&removing].is_err());
    assert_eq!(bench.places[&second].member.members().0.len(), 4);
}

#[test]
fn a_member_does_not_campaign_while_it_writes_a_snapshot() {
    let settings = RaftSettings { compact_bytes: 100, kept_entries: 0, ..RaftSettings::default() };
    let mut bench = Bench::with(3, settings);
    let leader = bench.leader();
    let (behind, other) = (1 + leader % 3, 1 + (leader + 1) % 3);
    bench.suspended.insert(behind);
    for number in 0..60 {
        bench.open(leader, &format!("run {number}"));
        bench.tick(1);
    }
    bench.suspended.clear();
    bench.set_disk(behind, Disk::Hangs);
    bench.tick(4);
    assert!(bench.places[&behind].member.is_installing(), "the log's beginning is gone");
    bench.places.remove(&leader);
    bench.tick(100);
    assert!(!bench.leads(behind) && !bench.leads(other), "a majority has not got what it needs");
    bench.set_disk(behind, Disk::Works);
    bench.tick(60);
    bench.leader();
    assert!(bench.agrees());
}

#[test]
fn a_single_voter_writes_its_log_before_it_leads() {
    let mut bench = Bench::of(2);
    let first = bench.leader();
    let other = 3 - first;
    bench.stops = Box::new(is_timeout_now);
    let now = bench.now;
    assert!(bench.member(first).transfer_to_follower(now));
    bench.settle();
    bench.tick(10);
    let invitation = bench.stopped.pop().expect("it was asked to lead");
    // The other member has its removal in its log, but does not know that the removal is committed.
    let last = bench.places[&first].member.node.raft.raft_log.last_index();
    bench.stops = Box::new(move |message| message.to == other && message.commit > last);
    bench.change(first, MembershipChange::Remove { id: id(other) });
    assert_eq!(bench.places[&first].member.voters(), 1);
    bench.set_disk(first, Disk::Hangs);
    bench.open(first, "run");
    bench.stops = Box::new(is_vote);
    bench.deliver(invitation);
    bench.settle();
    let mut vote = bench.stopped.pop().expect("the other member campaigns in a later term");
    bench.stops = Box::new(|_| false);
    bench.deliver(vote.clone());
    bench.settle();
    assert!(bench.leads(first), "the other member was removed");
    vote.from = 9;
    bench.deliver(vote);
    bench.settle();
    assert!(!bench.leads(first), "a coordinator that was never a member may be a member of a later term");
    bench.tick(15);
    assert!(!bench.leads(first), "its log is not written");
    bench.set_disk(first, Disk::Works);
    bench.tick(40);
    assert!(bench.leads(first));
}
