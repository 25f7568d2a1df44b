//! Where all consumers of a job stand at one step: asked by whoever saves a checkpoint, told by each consumer of itself. Soft
//! state: a consumer that was not heard in this life of the coordinator is asked again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use feedline_data::checkpoint::{PositionHistory, StepId, StepLookup};
use feedline_data::ids::{JobId, Millis};
use feedline_data::layout::StreamPosition;
use feedline_data::messages::{ConsumerReport, GroupPositions, JobState, ServiceError, ServiceErrorKind};

use super::consumers::TrackedConsumer;
use super::job::TrackedJob;

use super::{Cluster, ClusterSettings, Ready, Reply, RequestId};

/// Steps of one job that may be asked for at the same time.
const MOST_STEPS: usize = 64;
/// A step is asked of consumers for so many times as long as one request waits: whoever asks may ask again.
const HOLDS: Millis = 2;
/// Time between looks at whether those who have not answered are there at all.
const LOOK_MS: Millis = 100;

/// What is asked about one job.
#[derive(Debug, Default)]
pub(super) struct StepQueries {
    steps: BTreeMap<StepId, Ask>,
}

/// What was heard of one step, and who waits for it.
#[derive(Debug, Default)]
struct Ask {
    until: Millis,
    found: BTreeMap<u32, Vec<(u32, StreamPosition)>>,
    /// Consumers that do not know any more where they stood.
    lost: BTreeSet<u32>,
    /// Requests that wait for an answer and since when, the oldest in front.
    parked: VecDeque<(RequestId, Millis)>,
    /// Whether something was heard since it was looked at, and when that was.
    is_news: bool,
    looked_at: Millis,
}

impl StepQueries {
    /// Steps of which this consumer has not said where it stands there.
    pub(super) fn of_consumer(&self, consumer: u32) -> Vec<StepId> {
        let open = self.steps.iter().filter(|(_, ask)| ask.is_open(consumer));
        open.map(|(step, _)| *step).collect()
    }

    /// Takes what a consumer says. Whether it answers something.
    fn note(&mut self, consumer: u32, find: impl Fn(StepId) -> StepLookup) -> bool {
        let mut is_news = false;
        for (step, ask) in self.steps.iter_mut().filter(|(_, ask)| ask.is_open(consumer)) {
            is_news |= match find(*step) {
                StepLookup::Found(positions) => ask.found.insert(consumer, positions).is_none(),
                StepLookup::Evicted => ask.lost.insert(consumer),
                StepLookup::NotReached => false,
            };
            ask.is_news = true;
        }
        is_news
    }
}

impl Ask {
    fn is_open(&self, consumer: u32) -> bool {
        !self.found.contains_key(&consumer) && !self.lost.contains(&consumer)
    }
}

impl TrackedJob {
    /// Where a consumer of a deterministic job began in each of its streams.
    fn began(&self, consumer: u32) -> Vec<(u32, StreamPosition)> {
        let Some(layout) = &self.layout else { return Vec::new() };
        let start = |stream: u32| {
            let start = self.spec.start.as_ref().and_then(|start| start.streams.get(stream as usize));
            (stream, layout.normalise(stream, start.copied().unwrap_or_default()))
        };
        (consumer..layout.streams).step_by(self.spec.consumers.max(1) as usize).map(start).collect()
    }

    /// What is known of a step from what a consumer said before.
    fn found(&self, consumer: u32, step: StepId) -> StepLookup {
        if step.is_start() {
            return StepLookup::Found(self.began(consumer));
        }
        let marks = self.consumers.get(&consumer).and_then(|seat| seat.history.as_deref());
        match marks {
            None => StepLookup::NotReached,
            // One that came later, and went on where another had been, has not counted what that one had.
            Some(marks) if marks.start() != self.began(consumer) => StepLookup::Evicted,
            Some(marks) => marks.find(step),
        }
    }

    /// A consumer says where it stood, or that it ends.
    pub(super) fn note_marks(&mut self, report: &ConsumerReport) {
        let Some(seat) = self.consumers.get_mut(&report.consumer) else { return };
        if report.history.is_last && !seat.has_ended {
            seat.has_ended = true;
            self.asks.steps.values_mut().for_each(|ask| ask.is_news = true);
        }
        let Some(marks) = &report.history.history else { return };
        let is_whole = marks.start() == self.began(report.consumer);
        // Of what is of no use nothing is kept but that it is.
        let kept = if is_whole { marks.clone() } else { Box::new(PositionHistory::new(Vec::new())) };
        let Some(seat) = self.consumers.get_mut(&report.consumer) else { return };
        seat.history = Some(kept);
        let mut asks = std::mem::take(&mut self.asks);
        let is_news = asks.note(report.consumer, |step| self.found(report.consumer, step));
        self.asks = asks;
        if is_news {
            self.touch_consumer(report.consumer);
        }
    }

    /// Begins to ask for a step, or goes on; the request waits.
    fn ask(&mut self, step: StepId, until: Millis, parked: (RequestId, Millis)) {
        if let Some(ask) = self.asks.steps.get_mut(&step) {
            (ask.until, ask.is_news) = (until, true);
            ask.parked.push_back(parked);
            return;
        }
        let ask = Ask { until, is_news: true, parked: [parked].into(), ..Ask::default() };
        self.asks.steps.insert(step, ask);
        let mut asks = std::mem::take(&mut self.asks);
        for consumer in 0..self.spec.consumers {
            // Of other steps it has said what it can.
            asks.note(consumer, |other| {
                if other == step { self.found(consumer, step) } else { StepLookup::NotReached }
            });
        }
        self.asks = asks;
        self.touch_asked(step);
    }

    /// The plans of consumers that are asked for a step change.
    fn touch_asked(&mut self, step: StepId) {
        let Some(ask) = self.asks.steps.get(&step) else { return };
        for (number, seat) in self.consumers.iter_mut().filter(|(number, _)| ask.is_open(**number)) {
            seat.revision += 1;
            self.changed_consumers.insert(*number);
        }
    }

    /// Stops asking for what nobody waits for.
    fn forget_asks(&mut self, now: Millis) {
        let over = self.asks.steps.iter().filter(|(_, ask)| ask.until <= now);
        let over: Vec<StepId> = over.map(|(step, _)| *step).collect();
        for step in over {
            self.touch_asked(step);
            self.asks.steps.remove(&step);
        }
    }

    fn group_places(&self, ask: &Ask, is_silent: impl Fn(&TrackedConsumer) -> bool) -> GroupPositions {
        let mut told = GroupPositions::default();
        for consumer in 0..self.spec.consumers {
            if let Some(positions) = ask.found.get(&consumer) {
                told.positions.extend_from_slice(positions);
                continue;
            }
            told.missing.push(consumer);
            let may_tell = match self.consumers.get(&consumer) {
                Some(seat) => !seat.has_ended && !is_silent(seat),
                None => !matches!(self.ended, Some(JobState::Failed(_) | JobState::Cancelled)),
            };
            told.waits |= may_tell && !ask.lost.contains(&consumer);
        }
        told.positions.sort_unstable_by_key(|(stream, _)| *stream);
        told
    }

    /// Answers who asks where its consumers stand, once all have said so, nobody else can, or the time is over.
    fn answer_asks(&mut self, now: Millis, settings: &ClusterSettings, ready: &mut Ready) {
        let is_silent =
            |seat: &TrackedConsumer| now.saturating_sub(seat.last_seen) > settings.consumer_lease_ms;
        let is_over = |since: Millis| now.saturating_sub(since) >= settings.hold_ms;
        let mut asks = std::mem::take(&mut self.asks);
        for ask in asks.steps.values_mut() {
            let Some((_, oldest)) = ask.parked.front() else { continue };
            let is_early = now.saturating_sub(ask.looked_at) < LOOK_MS && !is_over(*oldest);
            if is_early && !ask.is_news {
                continue;
            }
            (ask.is_news, ask.looked_at) = (false, now);
            let told = self.group_places(ask, is_silent);
            let is_all = told.missing.is_empty() || !told.waits;
            while let Some((request, _)) = ask.parked.pop_front_if(|(_, since)| is_all || is_over(*since)) {
                ready.replies.push((request, Reply::Places(told.clone())));
            }
        }
        self.asks = asks;
        self.forget_asks(now);
    }
}

impl Cluster {
    pub(super) fn on_places(&mut self, request: RequestId, id: JobId, step: StepId, ready: &mut Ready) {
        let (now, hold) = (self.now, self.settings.hold_ms);
        let refusal = match self.jobs.get_mut(&id) {
            None => ServiceError::unknown_job(id),
            Some(job) if job.is_relaxed() || job.spec.elastic => ServiceError::new(
                ServiceErrorKind::Invalid,
                format!(
                    "the consumers of job `{}` have no steps in common; ask each where it stands",
                    job.spec.name
                ),
            ),
            Some(job) if job.layout.is_none() => ServiceError::new(
                ServiceErrorKind::Unavailable,
                format!("job {id} is still being prepared; ask again"),
            ),
            Some(job) if job.asks.steps.len() >= MOST_STEPS && !job.asks.steps.contains_key(&step) => {
                ServiceError::busy(format!("job {id} is asked for {MOST_STEPS} other steps"), hold)
            }
            Some(job) => {
                job.ask(step, now + HOLDS * hold, (request, now));
                self.asking.insert(id);
                return;
            }
        };
        ready.replies.push((request, Reply::Refused(refusal)));
    }

    /// Answers who asks where consumers stand.
    pub(super) fn answer_asks(&mut self, ready: &mut Ready) {
        let (now, settings) = (self.now, &self.settings);
        let jobs = &mut self.jobs;
        self.asking.retain(|id| {
            let Some(job) = jobs.get_mut(id) else { return false };
            job.answer_asks(now, settings, ready);
            !job.asks.steps.is_empty()
        });
    }
}
