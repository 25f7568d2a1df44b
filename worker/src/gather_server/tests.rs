//! Tests of tickets, isolation of jobs, invalid requests, and the bound of memory.

use async_trait::async_trait;
use feedline_access::ticket::TicketIssuer;
use feedline_access::{Secret, now_s};
use feedline_data::ids::SessionId;

use super::*;

const ROW_BYTES: u32 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A feature whose rows consist of one byte.
#[derive(Debug)]
struct FakeFeature(u8);

#[async_trait]
impl GatherableFeature for FakeFeature {
    fn row_bytes(&self) -> u32 {
        ROW_BYTES
    }

    async fn held_rows(&self, rows: Vec<u32>) -> Result<Vec<u8>, ServiceError> {
        if rows.contains(&u32::MAX) {
            return Err(ServiceError::new(ServiceErrorKind::NotFound, "another worker holds the row"));
        }
        Ok(vec![self.0; rows.len() * ROW_BYTES as usize])
    }
}

/// Job 1 has the feature 1, and job 2 the feature 2.
struct FakeSource;

impl GatherSource for FakeSource {
    fn feature(&self, job: JobId, content: GraphHash) -> Option<Arc<dyn GatherableFeature>> {
        let is_of_job = (1..=2).contains(&job.0) && u128::from(job.0) == content.0;
        is_of_job.then(|| Arc::new(FakeFeature(job.0 as u8)) as Arc<dyn GatherableFeature>)
    }
}

struct TestServer {
    server: GatherServer,
    budget: Arc<MemoryBudget>,
    issuer: TicketIssuer,
}

impl TestServer {
    fn new(budget_bytes: u64) -> Self {
        let issuer = TicketIssuer::new(&Secret::new().unwrap());
        let (tickets, budget) = (Tickets::new(true), Arc::new(MemoryBudget::new(budget_bytes)));
        tickets.set_key(issuer.public_key().as_bytes().to_vec());
        let server = GatherServer::new(Arc::new(FakeSource), Arc::new(tickets), Arc::clone(&budget));
        Self { server, budget, issuer }
    }

    /// A request for this number of rows with a valid ticket.
    fn request(&self, job: u64, rows: u32) -> GatherRequest {
        GatherRequest {
            job: JobId(job),
            feature: GraphHash(job.into()),
            row_bytes: ROW_BYTES,
            rows: (0..rows).collect(),
            ticket: self.issuer.issue_gather(JobId(job), now_s()),
        }
    }

    async fn refusal(&self, request: GatherRequest) -> ServiceError {
        self.server.gather(request).await.unwrap_err()
    }

    fn used_bytes(&self) -> u64 {
        self.budget.used_bytes(MemoryAccount::Batches)
    }
}

#[tokio::test]
async fn a_job_receives_only_rows_of_its_own_features() {
    let test = TestServer::new(64 * MIB);
    for job in [1, 2] {
        let rows = test.server.gather(test.request(job, 3)).await.unwrap();
        assert_eq!(rows, vec![job as u8; 3 * ROW_BYTES as usize]);
    }
    let ticket = test.request(1, 1).ticket;
    // The ticket of job 1 for job 2, and for the feature of job 2.
    let other_job = GatherRequest { ticket: ticket.clone(), ..test.request(2, 1) };
    let error = test.refusal(other_job).await;
    assert_eq!(error.kind, ServiceErrorKind::Denied);
    assert_eq!(error.message, "the ticket is for another job; use the ticket of this job");
    let other_feature = GatherRequest { feature: GraphHash(2), ..test.request(1, 1) };
    let error = test.refusal(other_feature).await;
    assert_eq!(error.kind, ServiceErrorKind::NotFound);
    assert!(error.message.starts_with("this worker holds no rows of the feature "), "{error}");
    let unknown = test.request(3, 1);
    assert_eq!(test.refusal(unknown).await.kind, ServiceErrorKind::NotFound);
    let of_consumer = test.issuer.issue(JobId(1), 0, SessionId(1), now_s());
    for ticket in [String::new(), of_consumer, "feedline-gather-1.e30.AAAA".to_owned()] {
        let refused = GatherRequest { ticket, ..test.request(1, 1) };
        assert_eq!(test.refusal(refused).await.kind, ServiceErrorKind::Denied);
    }
    assert_eq!(test.used_bytes(), 0);
}

#[tokio::test]
async fn an_invalid_request_is_rejected_in_one_sentence() {
    let test = TestServer::new(64 * MIB);
    let error = test.refusal(GatherRequest { row_bytes: 4, ..test.request(1, 1) }).await;
    assert_eq!(error.kind, ServiceErrorKind::Invalid);
    assert!(error.message.ends_with("has 1024 bytes, but the request expects 4 bytes"), "{error}");
    let error = test.refusal(test.request(1, 1 << 17)).await;
    assert!(error.message.ends_with("divide it into several requests"), "{error}");
    let elsewhere = GatherRequest { rows: vec![u32::MAX], ..test.request(1, 1) };
    assert_eq!(test.refusal(elsewhere).await.message, "another worker holds the row");
    assert_eq!(test.used_bytes(), 0, "a failed request releases its memory");
}

#[tokio::test]
async fn the_memory_of_unsent_rows_is_bounded() {
    // The limit is an eighth.
    let test = TestServer::new(8 * MIB);
    let error = test.refusal(test.request(1, 1_025)).await;
    assert_eq!(error.kind, ServiceErrorKind::Invalid);
    assert!(error.message.contains("this worker sends at most 1048576 bytes of rows at a time"), "{error}");
    let first = test.server.gather(test.request(1, 512)).await.unwrap();
    let second = test.server.gather(test.request(2, 512)).await.unwrap();
    assert_eq!(test.used_bytes(), MIB);
    let error = test.refusal(test.request(1, 1)).await;
    assert_eq!((error.kind, error.retry_after_ms), (ServiceErrorKind::Busy, Some(RETRY_MS)));
    let part = first.slice(0..10);
    drop(first);
    assert!(test.server.gather(test.request(1, 1)).await.is_err(), "a part of the rows is not sent yet");
    drop(part);
    assert!(test.server.gather(test.request(1, 1)).await.is_ok());
    drop(second);
    assert_eq!(test.used_bytes(), 0);
}
