//! `feedline members`: lists, adds and removes the coordinators of a cluster, and chooses the leader.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use feedline_access::Credentials;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::{MemberStatus, grpc};
use serde::Serialize;

use crate::cli::{AccessArgs, ClusterArgs};
use crate::failure::Failure;
use crate::{output, table};

/// The arguments of `feedline members`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "To replace a coordinator whose disk is lost: remove it, start one with an empty data directory \
    at the same address, and add that.\n\n\
    Examples:\n  \
    feedline members list --coordinator http://10.0.0.1:7070\n  \
    feedline members add http://10.0.0.4:7070 --coordinator http://10.0.0.1:7070\n  \
    feedline members remove http://10.0.0.2:7070 --coordinator http://10.0.0.1:7070\n  \
    feedline members transfer-leader 0a1b2c3d4e5f6071 --coordinator http://10.0.0.1:7070"
)]
pub(crate) struct MembersArgs {
    /// The cluster.
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Print one JSON array on one line instead of a table.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Credentials for the coordinators.
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    /// The action.
    #[command(subcommand)]
    pub(crate) change: Option<MembersChange>,
}

/// An action on the coordinators of a cluster.
#[derive(Subcommand, Debug, Clone)]
pub(crate) enum MembersChange {
    /// Lists the coordinators.
    List,
    /// Adds a coordinator that runs with an empty data directory and these coordinators as its --peers.
    Add {
        /// Where it listens, as the others reach it.
        #[arg(value_name = "URL")]
        url: String,
    },
    /// Removes a coordinator, which need not run any more.
    Remove {
        /// Where it listened.
        #[arg(value_name = "URL")]
        url: String,
    },
    /// Makes another coordinator the leader, such as before the leader's host is taken down.
    TransferLeader {
        /// Its id, as `feedline members list` prints it.
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// Time that coordinators have to choose one that leads.
const CHOOSING: Duration = Duration::from_secs(5);
/// Pause before they are asked again.
const RETRY: Duration = Duration::from_millis(200);

/// Lists the coordinators, after a change where one is asked for.
pub(crate) async fn run(args: MembersArgs) -> Result<(), Failure> {
    let Some(change) = args.change else {
        return Err(Failure::wrong_use(
            "`feedline members` needs an action: `feedline members list` lists the coordinators",
        ));
    };
    let credentials = args.access.credentials()?;
    let urls = args.cluster.urls();
    let deadline = Instant::now() + CHOOSING;
    let members = loop {
        match ask(&urls, &credentials, &change).await {
            Ok(members) => break members,
            Err(refusal) if refusal.kind == ServiceErrorKind::Unavailable && Instant::now() < deadline => {
                tokio::time::sleep(RETRY).await;
            }
            Err(refusal) => return Err(refusal.into()),
        }
    };
    if args.json {
        let lines: Vec<Line> = members.iter().map(Line::of).collect();
        let line = serde_json::to_string(&lines).map_err(Failure::failed)?;
        return Ok(output::print(&format!("{line}\n"))?);
    }
    Ok(output::print(&render(&members))?)
}

/// Asks one after the other, and whom they point at.
async fn ask(
    urls: &[String],
    credentials: &Credentials,
    change: &MembersChange,
) -> Result<Vec<MemberStatus>, ServiceError> {
    let mut left: VecDeque<String> = urls.iter().cloned().collect();
    let mut asked: Vec<String> = Vec::new();
    let mut said =
        ServiceError::new(ServiceErrorKind::Invalid, "no coordinator is named; name one with --coordinator");
    while let Some(url) = left.pop_front() {
        if asked.contains(&url) {
            continue;
        }
        let members = grpc::connect_coordinator(&url, credentials)?;
        let answer = match change {
            MembersChange::List => members.members().await,
            MembersChange::Add { url } => members.add_member(url).await,
            MembersChange::Remove { url } => members.remove_member(url).await,
            MembersChange::TransferLeader { id } => members.transfer_leader(id).await,
        };
        match answer {
            Err(refusal) if refusal.kind == ServiceErrorKind::Unavailable => {
                left.extend(refusal.leader.clone());
                said = refusal;
            }
            answer => return answer,
        }
        asked.push(url);
    }
    Err(said)
}

/// A coordinator in JSON.
#[derive(Serialize)]
struct Line<'a> {
    id: &'a str,
    url: &'a str,
    leads: bool,
    votes: bool,
    is_heard: bool,
    lacks: u64,
}

impl<'a> Line<'a> {
    fn of(status: &'a MemberStatus) -> Self {
        let MemberStatus { id, url, leads, votes, is_heard, lacks } = status;
        Self { id, url, leads: *leads, votes: *votes, is_heard: *is_heard, lacks: *lacks }
    }
}

fn render(members: &[MemberStatus]) -> String {
    let head = ["url", "id", "role", "state", "lacks"].map(str::to_owned).to_vec();
    let rows = members.iter().map(|member| {
        let role = match (member.leads, member.votes) {
            (true, _) => "leads",
            (false, true) => "follows",
            (false, false) => "learns",
        };
        let state = if member.is_heard { "answers" } else { "silent" };
        let lacks = member.lacks.to_string();
        vec![member.url.clone(), member.id.clone(), role.to_owned(), state.to_owned(), lacks]
    });
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    table::render(&rows, &[0, 1, 2, 3])
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn member(number: u64, leads: bool, votes: bool) -> MemberStatus {
        MemberStatus {
            id: format!("{number:016x}"),
            url: format!("http://10.0.0.{number}:7070"),
            leads,
            votes,
            is_heard: number != 2,
            lacks: if leads { 0 } else { 10 * number },
        }
    }

    #[test]
    fn members_are_a_table() {
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
