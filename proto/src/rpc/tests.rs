//! Tests that the table and the `.proto` files declare the same methods.

use super::*;

/// Methods that the files under `proto` declare.
fn declared() -> Vec<String> {
    let files = [
        include_str!("../../proto/feedline/v1/control.proto"),
        include_str!("../../proto/feedline/v1/data.proto"),
        include_str!("../../proto/feedline/v1/members.proto"),
    ];
    let mut service = "";
    let mut paths = Vec::new();
    for line in files.iter().flat_map(|file| file.lines()) {
        if let Some(rest) = line.strip_prefix("service ") {
            service = rest.trim_end_matches(" {");
        } else if let Some(rest) = line.strip_prefix("  rpc ") {
            let name = rest.split('(').next().unwrap();
            paths.push(format!("/feedline.v1.{service}/{name}"));
        }
    }
    paths
}

#[test]
fn every_declared_method_has_a_row() {
    let declared = declared();
    assert!(declared.len() >= 21, "{declared:?}");
    for path in declared {
        assert!(find(&path).is_some(), "{path} has no row");
    }
}

#[test]
fn a_row_limits_the_size_of_requests_and_an_unknown_method_has_no_row() {
    for (path, size) in [
        ("/feedline.v1.Coordinator/OpenJob", MessageSize::Medium),
        ("/feedline.v1.Coordinator/SyncConsumer", MessageSize::Medium),
        ("/feedline.v1.Coordinator/SyncWorker", MessageSize::Large),
        ("/feedline.v1.Coordinator/CancelJob", MessageSize::Small),
        ("/feedline.v1.Peer/Deliver", MessageSize::Large),
        ("/feedline.v1.Peer/StoreIndex", MessageSize::Medium),
        ("/feedline.v1.Members/AddMember", MessageSize::Small),
        ("/arrow.flight.protocol.FlightService/GetFlightInfo", MessageSize::Medium),
        ("/arrow.flight.protocol.FlightService/DoGet", MessageSize::Small),
    ] {
        assert_eq!(find(path).unwrap().max_request, size, "{path}");
    }
    assert!(find("").is_none() && find("/feedline.v1.Coordinator/Nothing").is_none());
}

#[test]
fn long_polls_and_streams_have_rows_too() {
    for (path, deadline) in [
        ("/feedline.v1.Coordinator/SyncWorker", Some(REQUEST_DEADLINE)),
        ("/feedline.v1.Coordinator/SyncConsumer", Some(REQUEST_DEADLINE)),
        ("/feedline.v1.Coordinator/GetPositions", Some(REQUEST_DEADLINE)),
        ("/feedline.v1.Coordinator/GetManifest", Some(REQUEST_DEADLINE)),
        ("/feedline.v1.Peer/GetIndex", Some(INDEX_DEADLINE)),
        ("/feedline.v1.Worker/Fetch", None),
        ("/feedline.v1.Worker/Gather", Some(GATHER_DEADLINE)),
        ("/arrow.flight.protocol.FlightService/DoGet", None),
    ] {
        assert_eq!(find(path).unwrap().deadline, deadline, "{path}");
    }
}

#[test]
fn a_request_has_the_rules_of_its_path() {
    let request = CoordinatorRequest::CancelJob { job: JobId(3) };
    assert_eq!(request.rpc().path, "/feedline.v1.Coordinator/CancelJob");
    assert_eq!(request.name(), "cancel_job");
    assert!(matches!(request.tenancy(), Tenancy::OfJob(JobId(3))));
}
