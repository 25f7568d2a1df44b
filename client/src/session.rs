//! A consumer's background task: tells the coordinator what was consumed, takes its plans, and runs the fetches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedline_data::messages::{ConsumerPlan, ServiceError, ServiceErrorKind};
use feedline_proto::CoordinatorService;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use metrics::counter;
use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::busy;
use crate::error::ClientError;
use crate::feed::{Feed, SentReport};
use crate::fetch::{self, FetchContext};
use crate::metrics::RECONNECTS_TOTAL;

/// Time between looks at what has become due when nothing else happens: finer than every delay of the feed.
const TICK: Duration = Duration::from_millis(20);
/// Reports on their way: one that is held back by the coordinator, and newer ones.
const REPORTS_IN_FLIGHT: usize = 4;
const BACKOFF_MIN: Duration = Duration::from_millis(50);
// A new leader is there within a second, and shall not wait for its consumers.
const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// The feed, and who waits for it.
pub(crate) struct SharedFeed {
    feed: Mutex<Feed>,
    /// The user's side may find a batch.
    ready: Notify,
    /// The session may find something to do.
    news: Notify,
}

impl SharedFeed {
    pub(crate) fn new(feed: Feed) -> Arc<Self> {
        Arc::new(Self { feed: Mutex::new(feed), ready: Notify::new(), news: Notify::new() })
    }

    /// The feed. Never held across a wait.
    pub(crate) fn feed(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the user's side should look again. Wakes at once if it should have since it looked last.
    pub(crate) async fn ready(&self) {
        self.ready.notified().await;
    }

    pub(crate) fn wake_session(&self) {
        self.news.notify_one();
    }

    pub(crate) fn wake_both(&self) {
        self.ready.notify_one();
        self.news.notify_one();
    }
}

/// An answer to a report.
struct Answer {
    number: u64,
    asked: Instant,
    said: SentReport,
    result: Result<ConsumerPlan, ServiceError>,
}

pub(crate) struct Session {
    coordinator: Arc<dyn CoordinatorService>,
    context: FetchContext,
    patience: Duration,
    reports: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// Number of the last report sent, and of the last one whose answer was taken.
    sent: u64,
    answered: u64,
    /// No report before this.
    wait_until: Instant,
    backoff: Duration,
    /// Since when no coordinator answers.
    lost_since: Option<Instant>,
    /// Since when there is no room, and how long that is waited for.
    busy_since: Option<Instant>,
    admission: Duration,
    /// A report that no newer one of this session can have displaced was told that it was displaced.
    superseded: bool,
    /// Version of the deliveries that the coordinator holds; closed when the session ends.
    held: watch::Sender<u64>,
}

impl Session {
    pub(crate) fn new(
        coordinator: Arc<dyn CoordinatorService>,
        context: FetchContext,
        [patience, admission]: [Duration; 2],
        held: watch::Sender<u64>,
    ) -> Self {
        Self {
            coordinator,
            context,
            patience,
            reports: FuturesUnordered::new(),
            sent: 0,
            answered: 0,
            wait_until: Instant::now(),
            backoff: BACKOFF_MIN,
            lost_since: None,
            busy_since: None,
            admission,
            superseded: false,
            held,
        }
    }

    /// Runs until `stop`, or until the feed can get nothing more.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let shared = Arc::clone(&self.context.shared);
        loop {
            self.begin_fetches();
            let pause = self.send_report_if_due();
            tokio::select! {
                () = stop.cancelled() => break,
                () = shared.news.notified() => {}
                Some(answer) = self.reports.next(), if !self.reports.is_empty() => self.on_answer(answer),
                () = tokio::time::sleep(pause) => {}
            }
            if shared.feed().fatal().is_some() {
                break;
            }
        }
        shared.feed().set_fatal(ClientError::Closed);
        drop(self);
        shared.wake_both();
    }

    fn begin_fetches(&self) {
        let shared = &self.context.shared;
        let orders = shared.feed().orders(Instant::now());
        for order in orders {
            let (split, attempt) = (order.split, order.attempt);
            let span = tracing::info_span!("fetch", ?split);
            let task = tokio::spawn(fetch::run(order, self.context.clone()).instrument(span));
            // The feed owns the task: it ends with its fetch's entry, and with the feed.
            shared.feed().attach(split, attempt, AbortOnDropHandle::new(task));
        }
    }

    /// Sends a report if one is due. Returns how long to wait at most before the next look.
    fn send_report_if_due(&mut self) -> Duration {
        let now = Instant::now();
        if now < self.wait_until || self.reports.len() >= REPORTS_IN_FLIGHT {
            return TICK;
        }
        let mut feed = self.context.shared.feed();
        feed.look_at_asks(now);
        if !self.reports.is_empty() && !feed.report_due(now) {
            return TICK;
        }
        let due = feed.may_report_at();
        if now < due {
            return TICK.min(due - now);
        }
        let (report, said) = feed.report(now);
        drop(feed);
        self.sent += 1;
        let (number, coordinator) = (self.sent, Arc::clone(&self.coordinator));
        self.reports.push(Box::pin(async move {
            let result = coordinator.sync_consumer(report).await;
            Answer { number, asked: now, said, result }
        }));
        TICK
    }

    fn on_answer(&mut self, answer: Answer) {
        let Answer { number, asked, said, result } = answer;
        match result {
            Ok(plan) => self.on_plan(number, &said, plan),
            Err(refusal) if refusal.kind == ServiceErrorKind::Superseded => {
                self.on_superseded(number, refusal)
            }
            Err(refusal) if refusal.kind == ServiceErrorKind::Unavailable => self.on_unavailable(refusal),
            Err(refusal) if refusal.kind == ServiceErrorKind::Busy => self.on_busy(asked, &refusal),
            Err(refusal) => self.context.shared.feed().set_fatal(refusal.into()),
        }
    }

    fn on_plan(&mut self, number: u64, said: &SentReport, plan: ConsumerPlan) {
        if self.lost_since.take().is_some() {
            counter!(RECONNECTS_TOTAL).increment(1);
            tracing::info!("the coordinator answers again");
        }
        self.backoff = BACKOFF_MIN;
        self.busy_since = None;
        self.superseded = false;
        let mut feed = self.context.shared.feed();
        let held = feed.on_report_answered(said);
        if number > self.answered {
            self.answered = number;
            feed.on_plan(plan, Instant::now());
        }
        drop(feed);
        self.held.send_replace(held);
        self.context.shared.wake_both();
    }

    /// An older report is told so when a newer one arrives. Reports may overtake each other on their way, so a single
    /// one proves nothing; two do.
    fn on_superseded(&mut self, number: u64, refusal: ServiceError) {
        if number < self.sent || !self.reports.is_empty() {
            return;
        }
        if self.superseded {
            self.context.shared.feed().set_fatal(refusal.into());
        }
        self.superseded = true;
    }

    /// There is no room for this consumer, or for its report.
    fn on_busy(&mut self, asked: Instant, refusal: &ServiceError) {
        let now = Instant::now();
        let since = *self.busy_since.get_or_insert_with(|| {
            tracing::warn!("waiting for room: {refusal}");
            now
        });
        if now - since >= self.admission {
            let seconds = (now - since).as_secs();
            let busy = ClientError::Busy { seconds, message: refusal.message.clone() };
            self.context.shared.feed().set_fatal(busy);
            return;
        }
        self.wait_until = self.wait_until.max(now + busy::pause(refusal, busy::draw(asked)));
    }

    fn on_unavailable(&mut self, refusal: ServiceError) {
        let now = Instant::now();
        let since = *self.lost_since.get_or_insert(now);
        if now - since >= self.patience {
            let seconds = self.patience.as_secs();
            let lost = ClientError::CoordinatorLost { seconds, message: refusal.message };
            self.context.shared.feed().set_fatal(lost);
            return;
        }
        if now >= self.wait_until {
            tracing::debug!(message = refusal.message, "the coordinator cannot be reached; trying again");
            self.wait_until = now + self.backoff;
            self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        }
    }
}
