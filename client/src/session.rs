//! The background task of a consumer: reports to the coordinator, applies the coordinator's plans, and starts fetches.

use std::sync::Arc;

use feedline_common::backoff::Backoff;
use feedline_common::mismatch_timer::{MismatchTimer, Rejection};
use feedline_data::messages::{ConsumerPlan, ServiceError, ServiceErrorKind};
use feedline_proto::CoordinatorService;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use metrics::counter;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::busy;
use crate::error::ClientError;
use crate::fetch::{self, FetchContext};
use crate::metrics::RECONNECTS_TOTAL;
use crate::state::SentReport;

/// Interval at which the session checks for work that becomes due without a notification. It is shorter than all delays
/// in the state.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of reports without a reply. The coordinator may delay the reply to a report until its plan changes.
const MAX_REPORTS_IN_FLIGHT: usize = 4;

/// The coordinator's reply to a report.
struct Reply {
    /// Number of the report.
    number: u64,
    report: SentReport,
    result: Result<ConsumerPlan, ServiceError>,
}

/// Timeouts after which a session fails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionTimeouts {
    /// Maximum time without a response from a coordinator.
    pub(crate) unavailable: Duration,
    /// Maximum time for which the coordinator may be busy.
    pub(crate) busy: Duration,
    /// Maximum time for which coordinators may have another protocol version.
    pub(crate) version_mismatch: Duration,
}

pub(crate) struct Session {
    coordinator: Arc<dyn CoordinatorService>,
    context: FetchContext,
    timeouts: SessionTimeouts,
    reports: FuturesUnordered<BoxFuture<'static, Reply>>,
    /// Number of the last report.
    last_sent: u64,
    /// Number of the last report with an applied plan.
    last_applied: u64,
    /// The earliest time of the next report.
    next_report_at: Instant,
    backoff: Backoff,
    /// Time at which coordinators stopped responding. `None` while a coordinator responds.
    unavailable_since: Option<Instant>,
    /// Time at which the coordinator became busy. `None` while it is not busy.
    busy_since: Option<Instant>,
    /// Measures for how long coordinators have rejected the protocol version.
    mismatch: MismatchTimer,
    /// Whether the coordinator rejected the newest report because of a newer session.
    is_superseded: bool,
    /// Version of the deliveries that the coordinator has acknowledged. The channel is closed when the session ends.
    acknowledged: watch::Sender<u64>,
}

impl Session {
    pub(crate) fn new(
        coordinator: Arc<dyn CoordinatorService>,
        context: FetchContext,
        timeouts: SessionTimeouts,
        acknowledged: watch::Sender<u64>,
    ) -> Self {
        Self {
            coordinator,
            context,
            timeouts,
            reports: FuturesUnordered::new(),
            last_sent: 0,
            last_applied: 0,
            next_report_at: Instant::now(),
            backoff: busy::COORDINATOR_BACKOFF,
            unavailable_since: None,
            busy_since: None,
            mismatch: MismatchTimer::default(),
            is_superseded: false,
            acknowledged,
        }
    }

    /// Runs until `stop` is cancelled or the consumer fails.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let shared = Arc::clone(&self.context.shared);
        loop {
            self.start_fetches();
            let pause = self.send_report_if_due();
            tokio::select! {
                () = stop.cancelled() => break,
                () = shared.session_notified() => {}
                Some(reply) = self.reports.next(), if !self.reports.is_empty() => self.on_reply(reply),
                () = tokio::time::sleep(pause) => {}
            }
            if shared.lock().fatal_error().is_some() {
                break;
            }
        }
        shared.lock().fail(ClientError::Closed);
        drop(self);
        shared.notify_all();
    }

    fn start_fetches(&self) {
        let shared = &self.context.shared;
        let commands = shared.lock().take_fetch_commands(Instant::now());
        for command in commands {
            let (split, attempt) = (command.split, command.attempt);
            let span = tracing::info_span!("fetch", ?split);
            let task = tokio::spawn(fetch::run(command, self.context.clone()).instrument(span));
            // The state owns the task and aborts it with the fetch.
            shared.lock().set_task(split, attempt, AbortOnDropHandle::new(task));
        }
    }

    /// Sends a report if a report is due. Returns the maximum pause until the next check.
    fn send_report_if_due(&mut self) -> Duration {
        let now = Instant::now();
        if now < self.next_report_at || self.reports.len() >= MAX_REPORTS_IN_FLIGHT {
            return CHECK_INTERVAL;
        }
        let mut state = self.context.shared.lock();
        state.answer_queries(now);
        if !self.reports.is_empty() && !state.is_report_due(now) {
            return CHECK_INTERVAL;
        }
        let due = state.next_report_at();
        if now < due {
            return CHECK_INTERVAL.min(due - now);
        }
        let (report, sent) = state.create_report(now);
        drop(state);
        self.last_sent += 1;
        let (number, coordinator) = (self.last_sent, Arc::clone(&self.coordinator));
        self.reports.push(Box::pin(async move {
            let result = coordinator.sync_consumer(report).await;
            Reply { number, report: sent, result }
        }));
        CHECK_INTERVAL
    }

    fn on_reply(&mut self, reply: Reply) {
        let Reply { number, report, result } = reply;
        match result {
            Ok(plan) => self.on_plan(number, &report, plan),
            Err(error) if error.kind == ServiceErrorKind::Superseded => self.on_superseded(number, error),
            Err(error) if error.is_version_mismatch => self.on_version_mismatch(error),
            Err(error) if error.kind == ServiceErrorKind::Unavailable => self.on_unavailable(error),
            Err(error) if error.kind == ServiceErrorKind::Busy => self.on_busy(&error),
            Err(error) => self.context.shared.lock().fail(error.into()),
        }
    }

    fn on_plan(&mut self, number: u64, report: &SentReport, plan: ConsumerPlan) {
        let had_mismatch = self.mismatch.reset();
        if self.unavailable_since.take().is_some() || had_mismatch {
            counter!(RECONNECTS_TOTAL).increment(1);
            tracing::info!("reconnected to the coordinator");
        }
        self.backoff.reset();
        self.busy_since = None;
        self.is_superseded = false;
        let mut state = self.context.shared.lock();
        let acknowledged = state.on_report_acknowledged(report);
        if number > self.last_applied {
            self.last_applied = number;
            state.apply_plan(plan, Instant::now());
        }
        drop(state);
        self.acknowledged.send_replace(acknowledged);
        self.context.shared.notify_all();
    }

    /// Fails the consumer after the second rejection of its newest report. A single rejection does not prove that another session has
    /// superseded this session, because the coordinator also rejects a report that arrives after a newer report of this session.
    fn on_superseded(&mut self, number: u64, error: ServiceError) {
        if number < self.last_sent || !self.reports.is_empty() {
            return;
        }
        if self.is_superseded {
            self.context.shared.lock().fail(error.into());
        }
        self.is_superseded = true;
    }

    fn on_busy(&mut self, error: &ServiceError) {
        let now = Instant::now();
        self.mismatch.reset();
        let since = *self.busy_since.get_or_insert_with(|| {
            tracing::warn!("the coordinator is busy, retrying: {error}");
            now
        });
        if now - since >= self.timeouts.busy {
            let seconds = (now - since).as_secs();
            let busy = ClientError::Busy { seconds, message: error.message.clone() };
            self.context.shared.lock().fail(busy);
            return;
        }
        let delay = busy::retry_delay(error);
        self.next_report_at = self.next_report_at.max(now + delay);
    }

    /// Waits for the end of a rolling upgrade. The coordinators respond, so the time without a response starts again.
    fn on_version_mismatch(&mut self, error: ServiceError) {
        let now = Instant::now();
        self.unavailable_since = None;
        let Rejection { lasted, is_warning_due } = self.mismatch.record(now.into_std());
        if is_warning_due {
            tracing::warn!("{error}; retrying");
        }
        if lasted >= self.timeouts.version_mismatch {
            let mismatch = ClientError::VersionMismatch { seconds: lasted.as_secs(), message: error.message };
            self.context.shared.lock().fail(mismatch);
            return;
        }
        if now >= self.next_report_at {
            self.next_report_at = now + self.backoff.next_pause();
        }
    }

    fn on_unavailable(&mut self, error: ServiceError) {
        let now = Instant::now();
        let since = *self.unavailable_since.get_or_insert(now);
        if now - since >= self.timeouts.unavailable {
            let seconds = self.timeouts.unavailable.as_secs();
            let lost = ClientError::CoordinatorLost { seconds, message: error.message };
            self.context.shared.lock().fail(lost);
            return;
        }
        if now >= self.next_report_at {
            tracing::debug!(message = error.message, "the coordinator is unavailable, retrying");
            self.next_report_at = now + self.backoff.next_pause();
        }
    }
}
