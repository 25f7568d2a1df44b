//! Clients that reach the coordinators only through a load balancer, as from outside of a Kubernetes cluster.

use feedline_tests::http::free_ports;
use feedline_tests::link::{Link, State, balance};
use feedline_tests::process::Role;
use feedline_tests::{Scratch, assert_clean, wait_for};

const COORDINATORS: usize = 3;

/// Coordinators with their own addresses, which only they and one worker have connected to.
struct BalancedCluster {
    scratch: Scratch,
    links: Vec<Link>,
    balancer: String,
    _coordinators: Vec<Role>,
    _worker: Role,
}

impl BalancedCluster {
    fn start() -> Self {
        let scratch = Scratch::new();
        let addresses = free_ports(COORDINATORS);
        let links: Vec<Link> = addresses.iter().map(|address| Link::to(address)).collect();
        let urls: Vec<String> = links.iter().map(|link| format!("http://{}", link.address)).collect();
        let (peers, mut coordinators) = (urls.join(","), Vec::new());
        for (place, (address, url)) in addresses.iter().zip(&urls).enumerate() {
            let data = scratch.file(&format!("coordinator-{place}"));
            let flags = ["--advertise", url, "--peers", &peers, "--data-dir", &data];
            let command = ["coordinator", "--listen", address];
            coordinators.push(Role::start(&[&command[..], &flags[..]].concat(), &[]));
        }
        let worker = start_worker(&peers);
        let cluster = Self {
            balancer: format!("http://{}", balance(&addresses)),
            scratch,
            links,
            _coordinators: coordinators,
            _worker: worker,
        };
        cluster.wait_for_workers(&peers, 1);
        cluster
    }

    /// Closes the addresses of the coordinators to further connections.
    fn close(&self) {
        self.links.iter().for_each(|link| link.set(State { is_closed: true, ..State::default() }));
    }

    fn urls(&self) -> String {
        let urls: Vec<String> = self.links.iter().map(|link| format!("http://{}", link.address)).collect();
        urls.join(",")
    }

    fn wait_for_workers(&self, url: &str, count: usize) {
        let count = count.to_string();
        wait_for("the workers", || {
            let top = ["top", "--once", "--min-workers", &count, "--coordinator", url];
            (self.scratch.call(&top).status == 0).then_some(())
        });
    }
}

fn start_worker(urls: &str) -> Role {
    let size = ["--cores", "1", "--memory", "256MiB"];
    let worker = ["worker", "--listen", "127.0.0.1:0", "--coordinator", urls];
    Role::start(&[&worker[..], &size[..]].concat(), &[])
}

#[test]
fn jobs_workers_and_commands_reach_the_leader_through_a_load_balancer() {
    let cluster = BalancedCluster::start();
    let scratch = &cluster.scratch;
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2000", "--shards", "2"]);
    let text = format!(
        "name: table\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 16 }} ]",
        scratch.file("table")
    );
    let file = scratch.write("table.yaml", &text);
    let listed = |url: &str| scratch.call(&["members", "list", "--coordinator", url]);
    assert_eq!(listed(&cluster.urls()).status, 0);
    cluster.close();
    assert_ne!(listed(&cluster.urls()).status, 0, "only the balancer admits clients");

    let url = &cluster.balancer;
    // Each command starts at another coordinator.
    for place in 0..COORDINATORS {
        let members = listed(url);
        assert_eq!(members.status, 0, "{place}: {}", members.stderr);
        let jobs = scratch.call(&["job", "list", "--coordinator", url]);
        assert_eq!(jobs.status, 0, "{place}: {}", jobs.stderr);
        let top = scratch.call(&["top", "--once", "--min-workers", "1", "--coordinator", url]);
        assert_eq!(top.status, 0, "{place}: {}", top.stderr);
        assert_clean(&scratch.run(&file, &["--coordinator", url]));
    }
    let _worker = start_worker(url);
    cluster.wait_for_workers(url, 2);
}
