//! `feedline members`: lists, adds and removes the coordinators of a cluster, and transfers leadership.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use feedline_access::Credentials;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::{MemberStatus, grpc};
use serde::Serialize;

use crate::cli::{AccessArgs, ClusterArgs};
use crate::cluster::{ELECTION_TIMEOUT, RETRY_PAUSE};
use crate::failure::Failure;
use crate::{output, table};

/// Time that `sync` and `list --expect-voters` wait for elections and for coordinators that have not joined yet.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a leader that could not be reached is not called again. Behind a load balancer, only other connections to
/// the balancer may lead to the leader.
const UNREACHABLE_PAUSE: Duration = Duration::from_secs(2);

/// The arguments of `feedline members`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "To replace a coordinator that lost its disk, start a coordinator with an empty data directory at the same \
    address. It replaces the lost one after 10 s.\n\n\
    Examples:\n  \
    feedline members list --coordinator http://10.0.0.1:7070\n  \
    feedline members add http://10.0.0.4:7070 --coordinator http://10.0.0.1:7070\n  \
    feedline members remove http://10.0.0.2:7070 --coordinator http://10.0.0.1:7070\n  \
    feedline members sync http://10.0.0.1:7070,http://10.0.0.2:7070,http://10.0.0.3:7070\n  \
    feedline members transfer-leader 0a1b2c3d4e5f6071 --coordinator http://10.0.0.1:7070"
)]
pub(crate) struct MembersArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Print one JSON array on one line instead of a table.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    /// The action.
    #[command(subcommand)]
    pub(crate) action: Option<MembersAction>,
}

/// An action on the coordinators of a cluster.
#[derive(Subcommand, Debug, Clone)]
pub(crate) enum MembersAction {
    /// Lists the coordinators.
    List {
        /// Exit with status 1 unless exactly this number of coordinators vote, and all of them answer. Waits for up to 30 s.
        #[arg(long, value_name = "N")]
        expect_voters: Option<usize>,
    },
    /// Waits until a new coordinator has joined, which has an empty data directory and the other coordinators as its --peers.
    Add {
        /// URL at which the other coordinators reach it.
        #[arg(value_name = "URL")]
        url: String,
    },
    /// Removes a coordinator, which may be offline.
    Remove {
        /// URL of the coordinator.
        #[arg(value_name = "URL")]
        url: String,
    },
    /// Removes the coordinators that are at none of these URLs, one at a time. Removes none if a URL does not answer.
    Sync {
        /// URLs of the coordinators that remain.
        #[arg(value_name = "URL,URL", value_delimiter = ',', required = true)]
        urls: Vec<String>,
        /// Change nothing, and ask no URL, if the cluster has at most as many coordinators as URLs.
        #[arg(long)]
        if_surplus: bool,
        /// Print a warning and exit with status 0 if no leader answers within 30 s, for commands that also run before a
        /// repair.
        #[arg(long, requires = "if_surplus")]
        allow_no_leader: bool,
    },
    /// Makes another coordinator the leader, for example before maintenance of the leader's host.
    TransferLeader {
        /// Id of the new leader, as `feedline members list` prints it.
        #[arg(value_name = "ID")]
        id: String,
    },
}

impl MembersAction {
    /// Returns the time for which the action is repeated.
    fn patience(&self) -> Duration {
        match self {
            Self::Sync { .. } | Self::List { expect_voters: Some(_) } => SYNC_TIMEOUT,
            _ => ELECTION_TIMEOUT,
        }
    }

    /// Sends the action to the coordinator at this URL.
    async fn call(&self, url: &str, credentials: &Credentials) -> Result<Vec<MemberStatus>, ServiceError> {
        let coordinator = grpc::connect_coordinator(url, credentials)?;
        match self {
            Self::List { .. } => coordinator.members().await,
            Self::Add { url } => coordinator.add_member(url).await,
            Self::Remove { url } => coordinator.remove_member(url).await,
            Self::Sync { urls, .. } => coordinator.sync_members(urls.clone()).await,
            Self::TransferLeader { id } => coordinator.transfer_leader(id).await,
        }
    }

    /// Checks the coordinators after the action. Returns a sentence if they are not as expected.
    fn check(&self, members: &[MemberStatus]) -> Result<(), String> {
        match self {
            Self::List { expect_voters: Some(expected) } => check_voters(members, *expected),
            _ => Ok(()),
        }
    }
}

fn check_voters(members: &[MemberStatus], expected: usize) -> Result<(), String> {
    let silent: Vec<&str> =
        members.iter().filter(|member| !member.is_reachable).map(|member| member.url.as_str()).collect();
    if !silent.is_empty() {
        return Err(format!("{} does not answer", silent.join(", ")));
    }
    let voters = members.iter().filter(|member| member.is_voter).count();
    if voters != expected {
        return Err(format!(
            "the cluster has {voters} voting coordinators, but --expect-voters is {expected}"
        ));
    }
    if !members.iter().any(|member| member.is_leader) {
        return Err("no coordinator leads: run the command again after the election".to_owned());
    }
    Ok(())
}

/// Runs one action, and then prints the coordinators.
pub(crate) async fn run(args: MembersArgs) -> Result<(), Failure> {
    if let Some(MembersAction::Sync { urls, if_surplus: true, allow_no_leader }) = &args.action
        && !has_surplus(&args, urls.len(), *allow_no_leader).await?
    {
        return Ok(());
    }
    call_until_late(args).await
}

/// Whether the cluster has more than `expected` coordinators. If not, prints them. Without a leader, fails unless
/// `allows_no_leader`.
async fn has_surplus(args: &MembersArgs, expected: usize, allows_no_leader: bool) -> Result<bool, Failure> {
    let credentials = args.access.credentials()?;
    let (urls, deadline) = (args.cluster.urls(), Instant::now() + SYNC_TIMEOUT);
    let list = MembersAction::List { expect_voters: None };
    let mut unreachable = BTreeMap::new();
    loop {
        match call_any(&urls, &credentials, &list, &mut unreachable).await {
            Ok(members) if members.len() > expected => return Ok(true),
            Ok(members) => {
                print(&members, args.json)?;
                return Ok(false);
            }
            Err(error) if error.kind == ServiceErrorKind::Unavailable && Instant::now() < deadline => {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) if error.kind == ServiceErrorKind::Unavailable && allows_no_leader => {
                tracing::warn!(
                    "no leader has answered for {} s, so no coordinator was removed; fewer coordinators than before will have no majority: {error}",
                    SYNC_TIMEOUT.as_secs()
                );
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Repeats the action while no coordinator can run it, and then prints the coordinators.
async fn call_until_late(args: MembersArgs) -> Result<(), Failure> {
    let Some(action) = args.action else {
        return Err(Failure::invalid_usage(
            "`feedline members` needs an action: use `feedline members list` to list the coordinators",
        ));
    };
    let credentials = args.access.credentials()?;
    let urls = args.cluster.urls();
    let deadline = Instant::now() + action.patience();
    let mut unreachable = BTreeMap::new();
    loop {
        let answer = call_any(&urls, &credentials, &action, &mut unreachable).await;
        let is_late = Instant::now() >= deadline;
        match answer {
            Ok(members) => {
                let checked = action.check(&members);
                if checked.is_ok() || is_late {
                    print(&members, args.json)?;
                    return checked.map_err(Failure::failed);
                }
            }
            Err(error)
                if error.kind == ServiceErrorKind::Unavailable && !error.is_version_mismatch && !is_late => {}
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

fn print(members: &[MemberStatus], is_json: bool) -> Result<(), Failure> {
    if is_json {
        let lines: Vec<MemberLine> = members.iter().map(MemberLine::of).collect();
        let line = serde_json::to_string(&lines).map_err(Failure::failed)?;
        return Ok(output::print(&format!("{line}\n"))?);
    }
    Ok(output::print(&render(members))?)
}

/// The errors of leaders that could not be reached, with their times.
type UnreachableLeaders = BTreeMap<String, (Instant, ServiceError)>;

/// Calls the coordinators in turn, including the leaders that they refer to, until one answers. Connects to each again, so
/// that a load balancer may select another coordinator.
async fn call_any(
    urls: &[String],
    credentials: &Credentials,
    action: &MembersAction,
    unreachable: &mut UnreachableLeaders,
) -> Result<Vec<MemberStatus>, ServiceError> {
    let mut queue: VecDeque<String> = urls.iter().cloned().collect();
    let mut called: Vec<String> = Vec::new();
    let mut last_error =
        ServiceError::new(ServiceErrorKind::Invalid, "--coordinator is empty: give the URL of a coordinator");
    // The reason of a leader is more useful than a reference of another coordinator to this leader.
    let mut has_reason = false;
    while let Some(url) = queue.pop_front() {
        if called.contains(&url) {
            continue;
        }
        let answer = match unreachable.get(&url) {
            Some((at, error)) if at.elapsed() < UNREACHABLE_PAUSE => Err(error.clone()),
            _ => {
                let answer = action.call(&url, credentials).await;
                if let Some(error) = answer.as_ref().err().filter(|error| error.is_unreachable)
                    && !urls.contains(&url)
                {
                    unreachable.insert(url.clone(), (Instant::now(), error.clone()));
                }
                answer
            }
        };
        match answer {
            Err(error) if error.kind == ServiceErrorKind::Unavailable => {
                queue.extend(error.leader.clone());
                let is_reason = error.leader.is_none();
                if is_reason || !has_reason {
                    last_error = error;
                }
                has_reason |= is_reason;
            }
            answer => return answer,
        }
        called.push(url);
    }
    Err(last_error)
}

/// A coordinator in the JSON output.
#[derive(Serialize)]
struct MemberLine<'a> {
    id: &'a str,
    url: &'a str,
    #[serde(rename = "leads")]
    is_leader: bool,
    #[serde(rename = "votes")]
    is_voter: bool,
    #[serde(rename = "is_heard")]
    is_reachable: bool,
    #[serde(rename = "lacks")]
    unconfirmed_entries: u64,
}

impl<'a> MemberLine<'a> {
    fn of(status: &'a MemberStatus) -> Self {
        Self {
            id: &status.id,
            url: &status.url,
            is_leader: status.is_leader,
            is_voter: status.is_voter,
            is_reachable: status.is_reachable,
            unconfirmed_entries: status.unconfirmed_entries,
        }
    }
}

fn render(members: &[MemberStatus]) -> String {
    let head = ["url", "id", "role", "state", "lacks"].map(str::to_owned).to_vec();
    let rows = members.iter().map(|member| {
        let role = match (member.is_leader, member.is_voter) {
            (true, _) => "leads",
            (false, true) => "follows",
            (false, false) => "learns",
        };
        let state = if member.is_reachable { "answers" } else { "silent" };
        let lacks = member.unconfirmed_entries.to_string();
        vec![member.url.clone(), member.id.clone(), role.to_owned(), state.to_owned(), lacks]
    });
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    table::render(&rows, &[0, 1, 2, 3])
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn member(number: u64, is_leader: bool, is_voter: bool) -> MemberStatus {
        MemberStatus {
            id: format!("{number:016x}"),
            url: format!("http://10.0.0.{number}:7070"),
            is_leader,
            is_voter,
            is_reachable: number != 2,
            unconfirmed_entries: if is_leader { 0 } else { 10 * number },
        }
    }

    #[test]
    fn voters_are_checked() {
        let [leader, silent, learner] =
            [member(1, true, true), member(2, false, true), member(3, false, false)];
        assert_eq!(check_voters(std::slice::from_ref(&leader), 1), Ok(()));
        assert_eq!(check_voters(&[leader.clone(), learner.clone()], 1), Ok(()));
        let check =
            |members: &[MemberStatus], expected| check_voters(members, expected).expect_err("it fails");
        assert_eq!(
            check(&[leader.clone(), learner.clone()], 3),
            "the cluster has 1 voting coordinators, but --expect-voters is 3"
        );
        assert_eq!(check(&[leader, silent], 2), "http://10.0.0.2:7070 does not answer");
        assert!(check(&[member(4, false, true), learner], 1).starts_with("no coordinator leads"));
    }

    #[test]
    fn members_are_rendered_as_a_table() {
        let members = [member(1, true, true), member(2, false, true), member(13, false, false)];
        expect![[r#"
            url                    id                role     state    lacks
            http://10.0.0.1:7070   0000000000000001  leads    answers      0
            http://10.0.0.2:7070   0000000000000002  follows  silent      20
            http://10.0.0.13:7070  000000000000000d  learns   answers    130
        "#]]
        .assert_eq(&render(&members));
    }
}
