//! Inputs that arrive while a new leader loads saved indexes. Reports are complete: a report replaces an earlier report
//! of the same session.

use std::collections::HashMap;

use feedline_cluster::{Input, RequestId};
use feedline_data::ids::{JobId, SessionId, WorkerId};

/// The sender of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reporter {
    Worker(WorkerId),
    Consumer(JobId, u32, SessionId),
}

/// Inputs in their order of arrival.
#[derive(Debug, Default)]
pub(super) struct HeldInputs {
    inputs: Vec<Input>,
    /// The index of each sender's report.
    reports: HashMap<Reporter, usize>,
}

impl HeldInputs {
    /// Adds an input. Returns the request of the report that it replaces.
    pub(super) fn push(&mut self, input: Input) -> Option<RequestId> {
        let Some(reporter) = reporter(&input) else {
            self.inputs.push(input);
            return None;
        };
        if let Some(earlier) = self.reports.get(&reporter).and_then(|place| self.inputs.get_mut(*place)) {
            return std::mem::replace(earlier, input).request();
        }
        self.reports.insert(reporter, self.inputs.len());
        self.inputs.push(input);
        None
    }

    /// Removes and returns all inputs.
    pub(super) fn take(&mut self) -> Vec<Input> {
        self.reports.clear();
        std::mem::take(&mut self.inputs)
    }

    pub(super) fn len(&self) -> usize {
        self.inputs.len()
    }
}

fn reporter(input: &Input) -> Option<Reporter> {
    match input {
        Input::Worker { report, .. } => Some(Reporter::Worker(report.worker)),
        Input::Consumer { report, .. } => {
            Some(Reporter::Consumer(report.job, report.consumer, report.session))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant_view::tests::{consuming, working};

    #[test]
    fn a_report_replaces_the_earlier_report_of_its_session() {
        let mut held = HeldInputs::default();
        let consumer = |session| {
            let report = consuming(JobId(1));
            feedline_data::messages::ConsumerReport { session: SessionId(session), ..report }
        };
        assert_eq!(held.push(Input::Worker { request: 1, report: working() }), None);
        assert_eq!(held.push(Input::JobStatus { request: 2, job: None }), None);
        assert_eq!(held.push(Input::Consumer { request: 3, report: consumer(1) }), None);
        for request in 4..1_000 {
            assert_eq!(
                held.push(Input::Worker { request, report: working() }),
                Some(if request == 4 { 1 } else { request - 1 })
            );
        }
        assert_eq!(held.push(Input::JobStatus { request: 1_000, job: None }), None);
        assert_eq!(held.push(Input::Consumer { request: 1_001, report: consumer(1) }), Some(3));
        assert_eq!(
            held.push(Input::Consumer { request: 1_002, report: consumer(2) }),
            None,
            "another session"
        );
        assert_eq!(held.len(), 5);
        let requests: Vec<_> = held.take().iter().filter_map(Input::request).collect();
        assert_eq!(requests, [999, 2, 1_001, 1_000, 1_002]);
        assert_eq!((held.len(), held.push(Input::Worker { request: 1, report: working() })), (0, None));
    }
}
