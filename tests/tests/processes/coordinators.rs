//! Coordinators as processes: they change their addresses, grow, lose a disk and shrink.

use std::fs;

use feedline_tests::http::free_ports;
use feedline_tests::process::Role;
use feedline_tests::{Scratch, wait_for};
use serde_json::Value;

/// Coordinators with their directories.
struct Cluster {
    scratch: Scratch,
    addresses: Vec<String>,
    roles: Vec<Role>,
}

impl Cluster {
    fn new() -> Self {
        Self { scratch: Scratch::new(), addresses: Vec::new(), roles: Vec::new() }
    }

    fn urls(&self) -> Vec<String> {
        self.addresses.iter().map(|address| format!("http://{address}")).collect()
    }

    fn folder(&self, place: usize) -> String {
        self.scratch.file(&format!("coordinator-{place}"))
    }

    fn run(&self, place: usize) -> Role {
        let (address, peers, folder) = (&self.addresses[place], self.urls().join(","), self.folder(place));
        Role::start(&["coordinator", "--listen", address, "--data-dir", &folder, "--peers", &peers], &[])
    }

    /// Starts coordinators up to this number. The running ones keep their --peers.
    fn grow(&mut self, count: usize) {
        self.addresses.extend(free_ports(count - self.addresses.len()));
        for place in self.roles.len()..count {
            let role = self.run(place);
            self.roles.push(role);
        }
    }

    /// Kills all coordinators and starts them at other addresses.
    fn move_all(&mut self) {
        self.roles.clear();
        self.addresses = free_ports(self.addresses.len());
        self.roles = (0..self.addresses.len()).map(|place| self.run(place)).collect();
    }

    fn members(&self, arguments: &[&str]) -> Result<Vec<Value>, String> {
        let urls = self.urls().join(",");
        let flags = ["--json", "--coordinator", &urls];
        let call = self.scratch.call(&[&["members"][..], arguments, &flags[..]].concat());
        serde_json::from_str(&call.stdout).map_err(|_| call.stderr)
    }

    /// Waits until all coordinators vote and answer, and returns their ids in the order of their addresses.
    fn ids(&self) -> Vec<String> {
        wait_for("all coordinators vote and answer", || {
            let members = self.members(&["list"]).ok()?;
            let id = |url: &String| {
                let member = members.iter().find(|member| member["url"] == url.as_str())?;
                let is_complete = member["votes"] == true && member["is_heard"] == true;
                member["id"].as_str().filter(|_| is_complete).map(str::to_owned)
            };
            let ids: Option<Vec<String>> = self.urls().iter().map(id).collect();
            ids.filter(|ids| ids.len() == members.len())
        })
    }
}

#[test]
fn coordinators_move_grow_lose_a_disk_and_shrink_without_losing_their_ids() {
    let mut cluster = Cluster::new();
    cluster.grow(1);
    let first = cluster.ids();
    cluster.grow(3);
    let grown = cluster.ids();
    assert_eq!(grown[..1], first);
    cluster.move_all();
    assert_eq!(cluster.ids(), grown, "all addresses have changed");

    cluster.roles[1].kill();
    fs::remove_dir_all(cluster.folder(1)).expect("the coordinator has written it");
    cluster.roles[1] = cluster.run(1);
    // For two seconds, the killed coordinator still counts as a member that answers.
    let repaired = wait_for("a new coordinator has replaced the lost one", || {
        Some(cluster.ids()).filter(|ids| ids[1] != grown[1])
    });
    assert_eq!([&repaired[0], &repaired[2]], [&grown[0], &grown[2]]);

    let kept = cluster.urls().swap_remove(0);
    let nowhere = format!("{kept},http://127.0.0.1:1");
    let refused = cluster.members(&["sync", &nowhere]).expect_err("nobody is there");
    assert!(refused.contains("http://127.0.0.1:1 does not answer"), "{refused}");
    assert_eq!(cluster.ids(), repaired, "nothing has changed");
    let refused = cluster.members(&["sync", "--if-surplus", &nowhere]).expect_err("two URLs, three members");
    assert!(refused.contains("http://127.0.0.1:1 does not answer"), "{refused}");
    let broken = format!("{nowhere},http://127.0.0.1:2");
    let unchanged = cluster.members(&["sync", "--if-surplus", &broken]).expect("as many URLs as members");
    assert_eq!(unchanged.len(), 3);
    for _ in ["first", "repeated"] {
        let members = cluster.members(&["sync", &kept]).unwrap();
        assert_eq!(members.iter().map(|member| &member["id"]).collect::<Vec<_>>(), [&grown[0]]);
    }
    cluster.addresses.truncate(1);
    cluster.roles.truncate(1);
    assert_eq!(cluster.ids(), first);
    assert!(cluster.members(&["list", "--expect-voters", "1"]).is_ok());
}

#[test]
fn without_a_leader_a_sync_warns_or_fails() {
    let mut cluster = Cluster::new();
    cluster.addresses = free_ports(3);
    let role = cluster.run(0);
    cluster.roles.push(role);
    let url = cluster.urls().swap_remove(0);
    let sync = |flags: &[&str]| {
        let sync = ["members", "sync", &url, "--coordinator", &url, "--if-surplus"];
        cluster.scratch.call(&[&sync[..], flags].concat())
    };
    // Both calls wait for a leader.
    let (warned, failed) = std::thread::scope(|scope| {
        let warned = scope.spawn(|| sync(&["--allow-no-leader"]));
        let failed = sync(&[]);
        (warned.join().expect("the call ends"), failed)
    });
    assert_eq!(warned.status, 0, "{}", warned.stderr);
    assert!(
        warned.stderr.contains("no leader has answered for 30 s, so no coordinator was removed"),
        "{warned:?}"
    );
    assert_ne!(failed.status, 0, "{failed:?}");
}
