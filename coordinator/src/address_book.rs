//! The addresses of the other coordinators. Each coordinator states its own address, which is newer than the address in the
//! membership if the coordinator has restarted elsewhere.

use std::collections::BTreeMap;

use feedline_proto::MemberInfo;
use feedline_raft::{MemberId, Members};

/// Maximum number of stated addresses, far above the number of coordinators in a cluster. Others are ignored.
const MAX_STATED_ADDRESSES: usize = 64;

/// The address of a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerAddress {
    pub(crate) url: String,
    /// The start of the coordinator that stated the address; 0 for an address from the membership.
    pub(crate) incarnation: u64,
    pub(crate) is_member: bool,
}

/// The stated addresses.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    stated: BTreeMap<MemberId, PeerAddress>,
}

impl AddressBook {
    /// Stores the address in a message, unless the address of a later start of the sender is known. Returns whether an
    /// address was stored.
    pub(crate) fn on_message(&mut self, sender: &MemberInfo) -> bool {
        self.store(sender, |known| sender.incarnation > known)
    }

    /// Stores the address of a coordinator that was asked for its id. The answer replaces any other address, also if the
    /// clock of the coordinator has gone back. Returns whether an address was stored.
    pub(crate) fn on_answer(&mut self, answer: &MemberInfo) -> bool {
        self.store(answer, |known| answer.incarnation != known)
    }

    fn store(&mut self, info: &MemberInfo, replaces: impl Fn(u64) -> bool) -> bool {
        let Some(id) = MemberId::new(info.id).filter(|_| !info.url.is_empty()) else { return false };
        let is_ignored = match self.stated.get(&id) {
            Some(known) => !replaces(known.incarnation),
            None => self.stated.len() >= MAX_STATED_ADDRESSES,
        };
        if is_ignored {
            return false;
        }
        let address = PeerAddress { url: info.url.clone(), incarnation: info.incarnation, is_member: false };
        self.stated.insert(id, address);
        true
    }

    /// Forgets the addresses of removed members.
    pub(crate) fn forget(&mut self, removed: &[MemberId]) {
        self.stated.retain(|id, _| !removed.contains(id));
    }

    /// Returns the addresses of all members, and of other coordinators that have stated their address: a coordinator whose
    /// log is behind must reply to a leader that is not in its membership yet.
    pub(crate) fn resolve(&self, members: &Members) -> BTreeMap<MemberId, PeerAddress> {
        let mut addresses = self.stated.clone();
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

    fn urls(book: &AddressBook) -> Vec<(u64, String, bool)> {
        let members = Members([(id(1), "stored1".to_owned()), (id(2), "stored2".to_owned())].into());
        let addresses = book.resolve(&members).into_iter();
        addresses.map(|(id, address)| (id.get(), address.url, address.is_member)).collect()
    }

    #[test]
    fn a_stated_address_replaces_the_stored_one_until_a_later_start_states_another() {
        let mut book = AddressBook::default();
        assert!(book.on_message(&stating(2, "second", 20)));
        assert!(!book.on_message(&stating(2, "first", 10)), "the message was late");
        assert!(!book.on_message(&stating(2, "second", 20)), "nothing is new");
        let expected = [(1, "stored1".to_owned(), true), (2, "second".to_owned(), true)];
        assert_eq!(urls(&book), expected);
        assert!(book.on_message(&stating(2, "third", 30)));
        assert_eq!(urls(&book)[1].1, "third");
        assert!(book.on_answer(&stating(2, "fourth", 4)), "its clock has gone back");
        assert_eq!(urls(&book)[1].1, "fourth");
    }

    #[test]
    fn a_coordinator_that_is_no_member_has_an_address() {
        let mut book = AddressBook::default();
        book.on_message(&stating(3, "third", 1));
        assert_eq!(urls(&book)[2], (3, "third".to_owned(), false));
        book.forget(&[id(3)]);
        assert_eq!(urls(&book).len(), 2);
    }

    #[test]
    fn invalid_and_too_many_statements_are_ignored() {
        let mut book = AddressBook::default();
        assert!(!book.on_message(&stating(0, "nobody", 1)));
        assert!(!book.on_message(&stating(3, "", 1)));
        let stored = (1..1_000).filter(|number| book.on_message(&stating(*number, "somewhere", 1))).count();
        assert_eq!(stored, MAX_STATED_ADDRESSES);
    }
}
