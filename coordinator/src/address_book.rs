//! The addresses of the other coordinators. Each coordinator states its own address, which is newer than the address in the
//! membership if the coordinator has restarted elsewhere.

use std::collections::BTreeMap;

use feedline_proto::MemberInfo;
use feedline_raft::{MemberId, Members};

/// Maximum number of stated addresses, far above the number of coordinators in a cluster. Beyond it, the address of the
/// coordinator that has been silent for the longest time, and that is not a member, is forgotten.
const MAX_STATED_ADDRESSES: usize = 64;

/// The address of a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerAddress {
    pub(crate) url: String,
    /// The start of the coordinator that stated the address; 0 for an address from the membership.
    pub(crate) incarnation: u64,
    pub(crate) is_member: bool,
}

/// An address that a coordinator has stated.
#[derive(Debug)]
struct StatedAddress {
    address: PeerAddress,
    /// Number of statements of all coordinators until the last one of this coordinator.
    last_statement: u64,
}

/// The stated addresses.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    stated: BTreeMap<MemberId, StatedAddress>,
    statements: u64,
}

impl AddressBook {
    /// Stores the address in a message, unless the address of a later start of the sender is known. Returns whether an
    /// address was stored.
    pub(crate) fn on_message(&mut self, sender: &MemberInfo, members: &Members) -> bool {
        self.store(sender, members, |known| sender.incarnation > known)
    }

    /// Stores the address of a coordinator that was asked for its id. The answer replaces any other address, also if the
    /// clock of the coordinator has gone back. Returns whether an address was stored.
    pub(crate) fn on_answer(&mut self, answer: &MemberInfo, members: &Members) -> bool {
        self.store(answer, members, |known| answer.incarnation != known)
    }

    fn store(&mut self, info: &MemberInfo, members: &Members, replaces: impl Fn(u64) -> bool) -> bool {
        let Some(id) = MemberId::new(info.id).filter(|_| !info.url.is_empty()) else { return false };
        self.statements += 1;
        let last_statement = self.statements;
        if let Some(known) = self.stated.get_mut(&id)
            && !replaces(known.address.incarnation)
        {
            known.last_statement = last_statement;
            return false;
        }
        let address = PeerAddress { url: info.url.clone(), incarnation: info.incarnation, is_member: false };
        self.stated.insert(id, StatedAddress { address, last_statement });
        if self.stated.len() > MAX_STATED_ADDRESSES {
            let others = self.stated.iter().filter(|(id, _)| members.url(**id).is_none());
            let oldest = others.min_by_key(|(_, stated)| stated.last_statement).map(|(id, _)| *id);
            oldest.map(|id| self.stated.remove(&id));
        }
        true
    }

    /// Forgets the addresses of removed members.
    pub(crate) fn forget(&mut self, removed: &[MemberId]) {
        self.stated.retain(|id, _| !removed.contains(id));
    }

    /// Returns the addresses of all members, and of other coordinators that have stated their address: a coordinator whose
    /// log is behind must reply to a leader that is not in its membership yet.
    pub(crate) fn resolve(&self, members: &Members) -> BTreeMap<MemberId, PeerAddress> {
        let stated = self.stated.iter().map(|(id, stated)| (*id, stated.address.clone()));
        let mut addresses: BTreeMap<MemberId, PeerAddress> = stated.collect();
        for (id, url) in &members.0 {
            let stored = || PeerAddress { url: url.clone(), incarnation: 0, is_member: true };
            addresses.entry(*id).or_insert_with(stored).is_member = true;
        }
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> MemberId {
        MemberId::new(number).unwrap()
    }

    fn stating(number: u64, url: &str, incarnation: u64) -> MemberInfo {
        MemberInfo { id: number, has_state: true, url: url.to_owned(), incarnation }
    }

    fn members() -> Members {
        Members([(id(1), "stored1".to_owned()), (id(2), "stored2".to_owned())].into())
    }

    fn urls(book: &AddressBook) -> Vec<(u64, String, bool)> {
        let addresses = book.resolve(&members()).into_iter();
        addresses.map(|(id, address)| (id.get(), address.url, address.is_member)).collect()
    }

    #[test]
    fn a_stated_address_replaces_the_stored_one_until_a_later_start_states_another() {
        let mut book = AddressBook::default();
        assert!(book.on_message(&stating(2, "second", 20), &members()));
        assert!(!book.on_message(&stating(2, "first", 10), &members()), "the message was late");
        assert!(!book.on_message(&stating(2, "second", 20), &members()), "nothing is new");
        let expected = [(1, "stored1".to_owned(), true), (2, "second".to_owned(), true)];
        assert_eq!(urls(&book), expected);
        assert!(book.on_message(&stating(2, "third", 30), &members()));
        assert_eq!(urls(&book)[1].1, "third");
        assert!(book.on_answer(&stating(2, "fourth", 4), &members()), "its clock has gone back");
        assert_eq!(urls(&book)[1].1, "fourth");
    }

    #[test]
    fn a_coordinator_that_is_no_member_has_an_address() {
        let mut book = AddressBook::default();
        book.on_message(&stating(3, "third", 1), &members());
        assert_eq!(urls(&book)[2], (3, "third".to_owned(), false));
        book.forget(&[id(3)]);
        assert_eq!(urls(&book).len(), 2);
    }

    #[test]
    fn invalid_statements_are_ignored() {
        let mut book = AddressBook::default();
        assert!(!book.on_message(&stating(0, "nobody", 1), &members()));
        assert!(!book.on_message(&stating(3, "", 1), &members()));
    }

    /// Coordinators with temporary disks have another id after each restart.
    #[test]
    fn the_oldest_address_of_a_coordinator_that_is_not_a_member_is_forgotten() {
        let mut book = AddressBook::default();
        assert!(book.on_message(&stating(2, "member", 1), &members()));
        for number in 3..1_000 {
            assert!(book.on_message(&stating(number, "somewhere", 1), &members()));
            book.on_message(&stating(3, "somewhere", 1), &members());
        }
        let known: Vec<u64> = urls(&book).into_iter().map(|(number, ..)| number).collect();
        let newest = 1_000 - (MAX_STATED_ADDRESSES as u64 - 2);
        let expected: Vec<u64> = [1, 2, 3].into_iter().chain(newest..1_000).collect();
        assert_eq!(
            known, expected,
            "the members, a coordinator that still states its address, and the newest"
        );
    }
}
