//! Tests of a client that reaches the coordinators only through a load balancer.

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

use super::*;

/// Coordinators behind a load balancer. Their own addresses are unreachable.
struct BalancedMembers {
    fakes: [Arc<FakeMember>; 3],
    unreachable: Vec<String>,
    balancer: String,
    _servers: Vec<Running>,
}

impl BalancedMembers {
    /// Starts coordinators without a leader.
    async fn start() -> Self {
        let fakes: [Arc<FakeMember>; 3] = std::array::from_fn(|_| Arc::default());
        let (mut servers, mut unreachable) = (Vec::new(), Vec::new());
        for fake in &fakes {
            servers.push(start(fake.routes()).await);
            let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
            unreachable.push(format!("http://{closed}"));
        }
        let targets: Vec<String> =
            servers.iter().map(|server| server.url.trim_start_matches("http://").to_owned()).collect();
        Self { fakes, unreachable, balancer: balance(targets).await, _servers: servers }
    }

    fn lead(&self, leader: usize) {
        for (place, fake) in self.fakes.iter().enumerate() {
            let named = (place != leader).then(|| self.unreachable[leader].clone());
            *fake.leader.lock().unwrap() = named;
            *fake.members.lock().unwrap() = self.unreachable.iter().map(|url| member(url)).collect();
        }
    }
}

/// Starts a load balancer that passes connections to the targets in turn, and returns its URL.
async fn balance(targets: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for target in targets.iter().cycle() {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(target).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    url
}

#[tokio::test]
async fn a_client_behind_a_load_balancer_reaches_each_leader() {
    let members = BalancedMembers::start().await;
    let client =
        connect_coordinators(std::slice::from_ref(&members.balancer), &Credentials::default()).unwrap();
    for leader in [2, 0, 1, 0] {
        members.lead(leader);
        assert_eq!(within(client.cancel_job(JobId(1))).await, Ok(()), "coordinator {leader} leads");
        assert_eq!(within(client.members()).await.unwrap().len(), 3);
    }
}

#[tokio::test]
async fn a_new_connection_does_not_end_requests_in_progress() {
    let members = BalancedMembers::start().await;
    let gate = Arc::new(Gate::default());
    *members.fakes[0].gate.lock().unwrap() = Some(Arc::clone(&gate));
    members.lead(0);
    let client =
        connect_coordinators(std::slice::from_ref(&members.balancer), &Credentials::default()).unwrap();
    let waiting = Arc::clone(&client);
    let listed = tokio::spawn(async move { waiting.list_jobs().await });
    within(gate.arrived.notified()).await;
    members.lead(1);
    assert_eq!(within(client.cancel_job(JobId(1))).await, Ok(()), "the second coordinator leads");
    gate.opened.notify_one();
    assert_eq!(within(listed).await.unwrap(), Ok(Vec::new()), "the first coordinator has answered");
}

#[tokio::test]
async fn without_a_reachable_leader_the_error_names_its_address() {
    let members = BalancedMembers::start().await;
    members.lead(0);
    *members.fakes[0].leader.lock().unwrap() = Some(members.unreachable[1].clone());
    *members.fakes[1].leader.lock().unwrap() = Some(members.unreachable[1].clone());
    *members.fakes[2].leader.lock().unwrap() = Some(members.unreachable[1].clone());
    let client =
        connect_coordinators(std::slice::from_ref(&members.balancer), &Credentials::default()).unwrap();
    let error = within(client.cancel_job(JobId(1))).await.unwrap_err();
    assert_eq!((error.kind, error.is_unreachable), (ServiceErrorKind::Unavailable, false));
    let reason = format!("is unreachable: cannot reach coordinator at {}", members.unreachable[1]);
    assert!(error.message.contains(&reason), "{error}");
}
