//! A simulated consumer: joins pieces with the assembler of the real client, and reports the durable position of its
//! application.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use feedline_cluster::Reply;
use feedline_data::consumer::{AssembledBatch, Assembler, Piece, PieceSlice, RunKind};
use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, ConsumerStats, JobState, Revision, ServiceErrorKind, WorkerAddress,
};
use feedline_data::pipeline::{OrderMode, Remainder};

use super::Fault;
use super::application::Application;
use super::dice::Dice;
use super::messages::{Call, Fetch, Outcome, Request, Rows, Send};
use super::scenario::JobData;

const NEWS_MS: Millis = 60;
const ANSWER_MS: Millis = 1_500;
const FETCH_MS: Millis = 900;
/// Maximum number of fetches in flight.
const FETCHES: usize = 6;
/// An application without new rows saves a checkpoint after this time.
const IDLE_MS: Millis = 150;

#[derive(Debug)]
struct Stream {
    assembler: Assembler<Rows>,
    /// The next expected split.
    next: Option<SplitRef>,
    /// The position after all expected splits.
    end: StreamPosition,
}

#[derive(Debug)]
struct InFlight {
    worker: WorkerId,
    call: u64,
    sent_at: Millis,
}

/// The identity of a consumer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    /// The index of the consumer among all consumers.
    pub(crate) place: u32,
    /// The index of the job in the scenario.
    pub(crate) of: usize,
    /// The index of the consumer in the job.
    pub(crate) number: u32,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) seat: Seat,
    pub(crate) session: SessionId,
    pub(crate) alive: bool,
    pub(crate) job: Option<JobId>,
    pub(crate) app: Application,
    /// The final state of the job, once known.
    pub(crate) ended: Option<JobState>,
    data: Rc<JobData>,
    fault: Fault,
    wants: u32,
    checkpoint_every: u64,
    plan: Option<ConsumerPlan>,
    /// The state of each stream. Relaxed mode has one stream.
    streams: BTreeMap<u32, Stream>,
    /// Relaxed mode: splits for which this session has received pieces.
    begun: BTreeSet<SplitRef>,
    fetches: BTreeMap<SplitRef, InFlight>,
    fetch_calls: u64,
    unreachable: BTreeSet<(SplitRef, WorkerId)>,
    reported: BTreeSet<(SplitRef, WorkerId)>,
    report: Call,
    open: Call,
    news: bool,
    /// The number of entries in the last report of this session, and in the last answered report.
    telling: usize,
    told: usize,
    delivered_at: Millis,
}

impl Consumer {
    pub(crate) fn new(
        seat: Seat,
        data: Rc<JobData>,
        wants: u32,
        checkpoint_every: u64,
        fault: Fault,
    ) -> Self {
        Self {
            seat,
            session: SessionId(1),
            alive: true,
            job: None,
            app: Application::default(),
            ended: None,
            data,
            fault,
            wants,
            checkpoint_every,
            plan: None,
            streams: BTreeMap::new(),
            begun: BTreeSet::new(),
            fetches: BTreeMap::new(),
            fetch_calls: 0,
            unreachable: BTreeSet::new(),
            reported: BTreeSet::new(),
            report: Call::default(),
            open: Call::default(),
            news: false,
            telling: 0,
            told: 0,
            delivered_at: 0,
        }
    }

    pub(crate) fn crash(&mut self) {
        self.alive = false;
        self.app.crash();
    }

    /// Restarts from the last checkpoint with a new session.
    pub(crate) fn restart(&mut self) {
        self.alive = true;
        self.session = SessionId(self.session.0 + 1);
        self.plan = None;
        self.streams.clear();
        self.begun.clear();
        self.fetches.clear();
        self.unreachable.clear();
        self.report = Call::default();
        self.open = Call::default();
        (self.telling, self.told) = (0, 0);
        if self.fault == Fault::Forgetful {
            self.app.positions.clear();
            self.app.offsets.clear();
        }
    }

    /// Describes the state for the error message of a failed run.
    pub(crate) fn describe(&self) -> String {
        let splits = |stream: &Stream| stream.assembler.undelivered_splits().collect::<Vec<_>>();
        format!(
            "consumer {:?}: alive {}, job {:?}, ended {:?}, expects {:?}, fetches {:?}, cannot reach {:?}, holds {:#?}",
            self.seat,
            self.alive,
            self.job,
            self.ended,
            self.streams.iter().map(|(number, stream)| (number, splits(stream))).collect::<Vec<_>>(),
            self.fetches,
            self.unreachable,
            self.plan.as_ref().map(|plan| (&plan.state, &plan.streams, &plan.splits, plan.exhausted)),
        )
    }

    /// Whether the coordinator has acknowledged all consumed entries.
    pub(crate) fn is_known(&self) -> bool {
        self.alive && (self.ended.is_some() || self.told == self.app.consumed())
    }

    fn is_relaxed(&self) -> bool {
        self.data.spec.pipeline.order == OrderMode::Relaxed
    }

    /// Runs periodically. A halting consumer delivers nothing.
    pub(crate) fn on_wake(&mut self, now: Millis, halting: bool, dice: &mut Dice, out: &mut Vec<Send>) {
        let Some(job) = self.job else {
            if self.open.may_send(now, ANSWER_MS) {
                let spec = Box::new(self.data.spec.clone());
                out.push(Send::Request(self.open.send(now), Box::new(Request::Open(spec))));
            }
            return;
        };
        if !halting {
            self.expect_more();
            self.deliver(now);
            self.fetch(now, job, dice, out);
        }
        let idle = halting || now - self.delivered_at >= IDLE_MS;
        let unsaved = self.app.undurable() as u64;
        if unsaved > 0 && (unsaved >= self.checkpoint_every || idle) {
            self.app.checkpoint();
            self.news = true;
        }
        let due = self.report.may_send(now, ANSWER_MS) || (self.news && self.report.age(now) >= NEWS_MS);
        if due && self.ended.is_none() {
            self.news = false;
            self.reported.clone_from(&self.unreachable);
            self.telling = self.app.consumed() - self.app.undurable();
            let call = self.report.send(now);
            out.push(Send::Request(call, Box::new(Request::Consumer(self.build_report(job)))));
        }
    }

    fn build_report(&self, job: JobId) -> ConsumerReport {
        let listed = |split: &SplitRef| {
            self.plan.as_ref().is_none_or(|plan| plan.splits.iter().any(|planned| planned.split == *split))
        };
        let open = self.app.offsets.iter().filter(|(split, _)| self.is_relaxed() && listed(split));
        ConsumerReport {
            job,
            consumer: self.seat.number,
            session: self.session,
            plan_revision: self.plan.as_ref().map_or_else(Revision::default, |plan| plan.revision),
            positions: self.app.positions.iter().map(|(stream, position)| (*stream, *position)).collect(),
            open_splits: open.map(|(split, offset)| (*split, *offset)).collect(),
            wanted_splits: self.wants + self.arrived(),
            unreachable: self.unreachable.iter().copied().collect(),
            batch_error: None,
            stats: ConsumerStats { rows: self.app.rows(), ..ConsumerStats::default() },
            slots: Default::default(),
            history: Default::default(),
            known_growth: feedline_data::growth::KnownGrowth::default(),
        }
    }

    /// Received splits of a stream that do not fill a batch yet.
    fn arrived(&self) -> u32 {
        let held = |stream: &Stream| {
            stream.assembler.undelivered_splits().count() - stream.assembler.missing_splits().count()
        };
        self.streams.values().map(held).max().unwrap_or(0) as u32
    }

    pub(crate) fn on_reply(&mut self, call: u64, reply: Reply) -> Result<(), String> {
        match reply {
            Reply::Opened(job) if self.open.take(call) => self.job = Some(job),
            Reply::Consumer(plan) if self.report.take(call) => {
                self.told = self.telling;
                return self.apply_plan(plan);
            }
            Reply::Rejected(refusal) if refusal.kind == ServiceErrorKind::Unavailable => {
                self.open.take(call);
                self.report.take(call);
            }
            Reply::Rejected(refusal) if self.report.take(call) => {
                return Err(format!("consumer {:?} was refused: {refusal}", self.seat));
            }
            Reply::Rejected(refusal) if self.open.take(call) => {
                return Err(format!("consumer {:?} cannot open the job: {refusal}", self.seat));
            }
            _ => {}
        }
        Ok(())
    }

    fn apply_plan(&mut self, plan: ConsumerPlan) -> Result<(), String> {
        self.unreachable.retain(|entry| !self.reported.contains(entry));
        if plan.state.is_ended() {
            self.ended = Some(plan.state.clone());
        }
        for &(stream, position) in &plan.streams {
            let own = self.app.positions.get(&stream).copied();
            if own.is_some_and(|own| position > self.data.layout.normalise(stream, own)) {
                return Err(format!(
                    "the coordinator has stream {stream} at {position:?}, which its consumer has not reached"
                ));
            }
            let start = own.unwrap_or(position);
            self.streams.entry(stream).or_insert_with(|| Stream {
                assembler: Assembler::new(self.data.layout.clone()),
                next: self.data.layout.locate(stream, start).map(|(split, _)| split),
                end: start,
            });
        }
        if self.is_relaxed() && plan.layout.is_some() {
            let stream = self.streams.entry(0).or_insert_with(|| Stream {
                assembler: Assembler::new(self.data.layout.clone()),
                next: None,
                end: StreamPosition::default(),
            });
            if plan.exhausted {
                stream.assembler.end_stream();
            }
        }
        self.plan = Some(plan);
        Ok(())
    }

    /// Deterministic mode: expects as many splits as the consumer wants.
    fn expect_more(&mut self) {
        if self.is_relaxed() {
            return;
        }
        let layout = &self.data.layout;
        for stream in self.streams.values_mut() {
            while let Some(split) =
                stream.next.filter(|_| stream.assembler.missing_splits().count() < self.wants as usize)
            {
                let offset = layout.locate(split.stream, stream.end).map_or(0, |(_, offset)| offset);
                stream.next = layout.next_split(split);
                let last = stream.next.is_none_or(|next| next.epoch != split.epoch);
                stream.assembler.expect_split(split, offset, last && layout.remainder != Remainder::Carry);
                stream.end = layout.position_in(split, layout.split_len(split));
                if stream.next.is_none() {
                    stream.assembler.end_stream();
                }
            }
        }
    }

    /// One batch of each stream.
    fn deliver(&mut self, now: Millis) {
        for (number, stream) in &mut self.streams {
            let Some(assembled) = stream.assembler.next_run() else { continue };
            let progress = stream.assembler.undelivered_splits().next();
            let position = progress.map(|(split, offset)| self.data.layout.position_in(split, offset));
            self.app.consume(*number, position.unwrap_or(stream.end), assembled);
            self.delivered_at = now;
            if self.fault == Fault::EarlyAck {
                // Injected fault: rows count as consumed too early.
                self.app.positions.insert(*number, stream.end);
                self.news = true;
            }
        }
    }

    /// Returns the start of the next piece of a split; `None` for a complete split.
    fn missing(&self, split: SplitRef, from: u32) -> Option<u32> {
        let stream = self.streams.get(&split.stream)?;
        if let Some(arrived) = stream.assembler.next_arrival_offset(split) {
            return (arrived < self.data.layout.split_len(split)).then_some(arrived);
        }
        if !self.is_relaxed() || self.begun.contains(&split) {
            return None;
        }
        let from = self.app.offsets.get(&split).copied().unwrap_or(0).max(from);
        (from < self.data.layout.split_len(split)).then_some(from)
    }

    fn fetch(&mut self, now: Millis, job: JobId, dice: &mut Dice, out: &mut Vec<Send>) {
        let late: Vec<SplitRef> = self
            .fetches
            .iter()
            .filter(|(_, flight)| now - flight.sent_at >= FETCH_MS)
            .map(|(split, _)| *split)
            .collect();
        for split in late {
            self.give_up(split);
        }
        let Some(plan) = &self.plan else { return };
        for planned in &plan.splits {
            if self.fetches.len() >= FETCHES || self.fetches.contains_key(&planned.split) {
                continue;
            }
            let Some(from) = self.missing(planned.split, planned.start_offset) else { continue };
            let usable = |(worker, _): &&(WorkerId, WorkerAddress)| {
                !self.unreachable.contains(&(planned.split, *worker))
            };
            let workers: Vec<WorkerId> =
                planned.workers.iter().filter(usable).map(|(worker, _)| *worker).collect();
            if workers.is_empty() {
                continue;
            }
            let worker = dice.pick(&workers);
            self.fetch_calls += 1;
            let call = self.fetch_calls;
            self.fetches.insert(planned.split, InFlight { worker, call, sent_at: now });
            let (consumer, session) = (self.seat.place, self.session);
            out.push(Send::Fetch(Fetch { worker, consumer, session, call, job, split: planned.split, from }));
        }
    }

    fn give_up(&mut self, split: SplitRef) {
        if let Some(flight) = self.fetches.remove(&split) {
            self.unreachable.insert((split, flight.worker));
            self.news = true;
        }
    }

    pub(crate) fn on_fetched(&mut self, fetch: Fetch, outcome: Outcome) {
        let awaited = self.fetches.get(&fetch.split).is_some_and(|flight| flight.call == fetch.call);
        match outcome {
            Outcome::NotHeld if awaited => self.give_up(fetch.split),
            Outcome::NotHeld => {}
            Outcome::Pieces(pieces) => {
                if awaited {
                    self.fetches.remove(&fetch.split);
                }
                for piece in pieces {
                    self.take_piece(fetch, piece);
                }
            }
        }
    }

    fn take_piece(&mut self, fetch: Fetch, piece: Piece<Rows>) {
        let relaxed = self.is_relaxed();
        let Some(stream) = self.streams.get_mut(&piece.split.stream) else { return };
        if relaxed && !self.begun.contains(&piece.split) {
            // Relaxed mode: rows are delivered in order of arrival.
            stream.assembler.expect_split(piece.split, fetch.from, false);
            self.begun.insert(piece.split);
        }
        let taken = stream.assembler.push(piece.clone());
        if !taken && self.fault == Fault::PieceTwice {
            let input = piece.start..piece.end;
            let rows = 0..piece.rows();
            let part = PieceSlice {
                payload: piece.payload,
                rows,
                split: piece.split,
                input_range: input,
                piece_start: piece.start,
            };
            let (epoch, rows) = (piece.split.epoch, part.rows.end);
            let twice = AssembledBatch { kind: RunKind::Batch, epoch, rows, parts: vec![part] };
            self.app.consume(piece.split.stream, stream.end, twice);
        }
    }
}
