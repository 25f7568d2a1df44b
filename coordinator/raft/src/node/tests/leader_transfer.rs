//! Leader transfer on request: which targets are accepted, and what happens if the target cannot be reached.

use super::*;

impl Bench {
    fn transfer(&mut self, from: u64, to: u64) -> Result<(), String> {
        let now = self.now;
        let begun = self.member(from).transfer_leader(now, id(to));
        self.settle();
        begun.map_err(|refusal| refusal.message)
    }
}

#[test]
fn leadership_goes_to_the_chosen_follower() {
    for choice in 0..2 {
        let mut bench = Bench::of(3);
        let first = bench.leader();
        bench.open(first, "run");
        let others: Vec<u64> = (1..=3).filter(|number| *number != first).collect();
        bench.transfer(first, others[choice]).unwrap();
        bench.tick(4);
        assert_eq!(bench.leader(), others[choice]);
        assert!(!bench.leads(first));
        bench.tick(40);
        assert!(bench.agrees());
    }
}

#[test]
fn a_target_that_cannot_lead_is_rejected_and_the_leader_stays() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let follower = (1..=3).find(|number| *number != leader).unwrap();
    bench.change(leader, MembershipChange::Add { id: id(9), url: url(9) });
    bench.tick(4);
    for (from, to, said) in [
        (leader, 77, "no coordinator has id 000000000000004d; list the ids with `feedline members list`"),
        (leader, 9, "is a learner and cannot lead yet"),
    ] {
        let refusal = bench.transfer(from, to).unwrap_err();
        assert!(refusal.contains(said), "{refusal}");
        assert!(bench.leads(leader) && !bench.member(leader).is_transferring());
    }
    assert!(bench.transfer(follower, leader).unwrap_err().contains(&url(leader)), "it names the leader");
}

/// A client that lost the reply of a finished transfer sends the request again, to the new leader.
#[test]
fn a_transfer_to_the_current_leader_succeeds_without_effect() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    assert_eq!(bench.transfer(leader, leader), Ok(()));
    assert!(bench.leads(leader) && !bench.member(leader).is_transferring());
    let request = bench.open(leader, "run");
    bench.tick(4);
    assert!(matches!(bench.replies[&request], Reply::Opened(_)), "{:?}", bench.replies[&request]);
}

#[test]
fn a_leader_continues_if_the_target_is_unreachable() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let target = (1..=3).find(|number| *number != leader).unwrap();
    bench.stops = Box::new(is_timeout_now);
    bench.transfer(leader, target).unwrap();
    assert!(bench.member(leader).is_transferring());
    assert!(
        bench.transfer(leader, target).unwrap_err().contains("another leadership transfer is in progress")
    );
    bench.tick(20);
    assert!(bench.leads(leader) && !bench.member(leader).is_transferring());
    let asked = bench.open(leader, "run");
    bench.tick(4);
    assert!(matches!(bench.replies[&asked], Reply::Opened(_)), "{:?}", bench.replies[&asked]);
}
