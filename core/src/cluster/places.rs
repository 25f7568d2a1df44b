//! Where all consumers of a job stand at one step: asked by whoever saves a checkpoint, told by each consumer of itself. Soft
//! state: a consumer that was not heard in this life of the coordinator is asked again.

use std::collections::{BTreeMap, BTreeSet};

use super::consumers::Consumer;
use super::job::Job;
use super::messages::{ConsumerReport, GroupPlaces, JobState, Refusal, RefusalKind};
use super::{Cluster, Ready, Reply, RequestId};
use crate::ids::{JobId, Millis};
use crate::layout::StreamPosition;
use crate::marks::{Found, Step};

/// Steps of one job that may be asked for at the same time.
const MOST_STEPS: usize = 64;
/// A step is asked of consumers for so many times as long as one request waits: whoever asks may ask again.
const HOLDS: Millis = 2;

/// What is asked about one job.
#[derive(Debug, Default)]
pub(super) struct Asks {
    steps: BTreeMap<Step, Ask>,
    /// Requests that wait for an answer.
    parked: Vec<ParkedAsk>,
}

/// What was heard of one step.
#[derive(Debug, Default)]
struct Ask {
    until: Millis,
    found: BTreeMap<u32, Vec<(u32, StreamPosition)>>,
    /// Consumers that do not know any more where they stood.
    lost: BTreeSet<u32>,
}

#[derive(Debug)]
struct ParkedAsk {
    request: RequestId,
    step: Step,
    since: Millis,
}

impl Asks {
    /// Steps of which this consumer has not said where it stands there.
    pub(super) fn of_consumer(&self, consumer: u32) -> Vec<Step> {
        let open = self.steps.iter().filter(|(_, ask)| ask.is_open(consumer));
        open.map(|(step, _)| *step).collect()
    }

    /// Takes what a consumer says. Whether it answers something.
    fn note(&mut self, consumer: u32, find: impl Fn(Step) -> Found) -> bool {
        let mut is_news = false;
        for (step, ask) in self.steps.iter_mut().filter(|(_, ask)| ask.is_open(consumer)) {
            is_news |= match find(*step) {
                Found::At(positions) => ask.found.insert(consumer, positions).is_none(),
                Found::Gone => ask.lost.insert(consumer),
                Found::Ahead => false,
            };
        }
        is_news
    }
}

impl Ask {
    fn is_open(&self, consumer: u32) -> bool {
        !self.found.contains_key(&consumer) && !self.lost.contains(&consumer)
    }
}

impl Job {
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
    fn found(&self, consumer: u32, step: Step) -> Found {
        if step.is_start() {
            return Found::At(self.began(consumer));
        }
        let marks = self.consumers.get(&consumer).and_then(|seat| seat.marks.as_deref());
        match marks {
            None => Found::Ahead,
            // One that came later, and went on where another had been, has not counted what that one had.
            Some(marks) if marks.began() != self.began(consumer) => Found::Gone,
            Some(marks) => marks.find(step),
        }
    }

    /// A consumer says where it stood, or that it ends.
    pub(super) fn note_marks(&mut self, report: &ConsumerReport) {
        let Some(seat) = self.consumers.get_mut(&report.consumer) else { return };
        seat.has_ended |= report.marks.is_last;
        let Some(marks) = &report.marks.marks else { return };
        seat.marks = Some(marks.clone());
        let mut asks = std::mem::take(&mut self.asks);
        let is_news = asks.note(report.consumer, |step| self.found(report.consumer, step));
        self.asks = asks;
        if is_news && let Some(seat) = self.consumers.get_mut(&report.consumer) {
            seat.revision += 1;
        }
    }

    /// Begins to ask for a step, or goes on.
    fn ask(&mut self, step: Step, until: Millis) {
        if let Some(ask) = self.asks.steps.get_mut(&step) {
            ask.until = until;
            return;
        }
        self.asks.steps.insert(step, Ask { until, ..Ask::default() });
        let mut asks = std::mem::take(&mut self.asks);
        for consumer in 0..self.spec.consumers {
            asks.note(consumer, |step| self.found(consumer, step));
        }
        self.asks = asks;
        self.touch_asked(step);
    }

    /// The plans of consumers that are asked for a step change.
    fn touch_asked(&mut self, step: Step) {
        let Some(ask) = self.asks.steps.get(&step) else { return };
        for (_, seat) in self.consumers.iter_mut().filter(|(number, _)| ask.is_open(**number)) {
            seat.revision += 1;
        }
    }

    /// Stops asking for what nobody waits for.
    fn forget_asks(&mut self, now: Millis) {
        let over = self.asks.steps.iter().filter(|(_, ask)| ask.until <= now);
        let over: Vec<Step> = over.map(|(step, _)| *step).collect();
        for step in over {
            self.touch_asked(step);
            self.asks.steps.remove(&step);
        }
    }

    fn group_places(&self, step: Step, is_silent: impl Fn(&Consumer) -> bool) -> GroupPlaces {
        let mut told = GroupPlaces::default();
        let Some(ask) = self.asks.steps.get(&step) else { return told };
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
}

impl Cluster {
    pub(super) fn on_places(&mut self, request: RequestId, id: JobId, step: Step, ready: &mut Ready) {
        let (now, hold) = (self.now, self.settings.hold_ms);
        let refusal = match self.jobs.get_mut(&id) {
            None => Refusal::unknown_job(id),
            Some(job) if job.is_relaxed() || job.spec.elastic => Refusal::new(
                RefusalKind::Invalid,
                format!(
                    "the consumers of job `{}` have no steps in common; ask each where it stands",
                    job.spec.name
                ),
            ),
            Some(job) if job.layout.is_none() => {
                Refusal::new(RefusalKind::Unavailable, format!("job {id} is still being prepared; ask again"))
            }
            Some(job) if job.asks.steps.len() >= MOST_STEPS && !job.asks.steps.contains_key(&step) => {
                Refusal::busy(format!("job {id} is asked for {MOST_STEPS} other steps"), hold)
            }
            Some(job) => {
                job.ask(step, now + HOLDS * hold);
                job.asks.parked.push(ParkedAsk { request, step, since: now });
                self.asking.insert(id);
                return;
            }
        };
        ready.replies.push((request, Reply::Refused(refusal)));
    }

    /// Answers who asks where consumers stand, once all have said so, nobody else can, or the time is over.
    pub(super) fn answer_asks(&mut self, ready: &mut Ready) {
        let (now, hold, lease) = (self.now, self.settings.hold_ms, self.settings.consumer_lease_ms);
        let is_silent = |seat: &Consumer| now.saturating_sub(seat.last_seen) > lease;
        for id in self.asking.clone() {
            let Some(job) = self.jobs.get_mut(&id) else {
                self.asking.remove(&id);
                continue;
            };
            for ask in std::mem::take(&mut job.asks.parked) {
                let told = job.group_places(ask.step, is_silent);
                if !told.missing.is_empty() && told.waits && now.saturating_sub(ask.since) < hold {
                    job.asks.parked.push(ask);
                } else {
                    ready.replies.push((ask.request, Reply::Places(told)));
                }
            }
            job.forget_asks(now);
            if job.asks.steps.is_empty() {
                self.asking.remove(&id);
            }
        }
    }
}
