//! Members that restart at other addresses: the leader writes the new addresses to the membership.

use super::*;

impl Bench {
    /// Lets a coordinator state its address to all others.
    fn state(&mut self, number: u64, url: &str) {
        for (_, place) in self.places.iter_mut().filter(|(other, _)| **other != number) {
            place.member.set_address(id(number), url.to_owned());
        }
    }

    /// The address of a coordinator in the membership of each running coordinator.
    fn stored(&self, number: u64) -> BTreeSet<Option<&str>> {
        self.places.values().map(|place| place.member.members().url(id(number))).collect()
    }
}

#[test]
fn the_leader_writes_stated_addresses_to_the_membership() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let others: Vec<u64> = (1..=3).filter(|number| *number != leader).collect();
    for number in &others {
        bench.state(*number, &format!("moved://{number}"));
    }
    bench.tick(6);
    for number in others {
        assert_eq!(bench.stored(number), [Some(format!("moved://{number}").as_str())].into());
    }
    assert_eq!(bench.stored(leader), [Some(url(leader).as_str())].into());
    assert_eq!(bench.places[&leader].member.voters(), 3);
}

#[test]
fn a_learner_with_another_address_stays_a_learner() {
    let mut bench = Bench::of(1);
    bench.change(1, MembershipChange::Add { id: id(2), url: url(2) });
    bench.state(2, "moved://2");
    bench.tick(4);
    assert_eq!(bench.stored(2), [Some("moved://2")].into());
    assert_eq!(bench.places[&1].member.voters(), 1, "it has no state yet");
}

#[test]
fn the_address_of_a_coordinator_that_is_no_member_is_not_written() {
    let mut bench = Bench::of(3);
    bench.state(9, "moved://9");
    bench.tick(6);
    assert_eq!(bench.stored(9), [None].into());
}

#[test]
fn a_follower_names_the_address_that_the_leader_has_stated() {
    let mut bench = Bench::of(3);
    let leader = bench.leader();
    let follower = 1 + leader % 3;
    bench.member(follower).set_address(id(leader), "moved://leader".to_owned());
    let refusal = bench.places[&follower].member.rejection();
    assert_eq!(refusal.leader.as_deref(), Some("moved://leader"));
}
