//! Requests that came while a leader's indexes are loaded. A report replaces an earlier one of the same session, which says
//! nothing that it does not.

use std::collections::HashMap;

use feedline_cluster::{Input, RequestId};
use feedline_data::ids::{JobId, SessionId, WorkerId};

/// Whose report it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reporter {
    Worker(WorkerId),
    Consumer(JobId, u32, SessionId),
}

/// Requests in the order in which they came first.
#[derive(Debug, Default)]
pub(super) struct LongPolls {
    inputs: Vec<Input>,
    /// Where the report of each is.
    reports: HashMap<Reporter, usize>,
}

impl LongPolls {
    /// Holds a request; gives the one whose place it takes.
    pub(super) fn put(&mut self, input: Input) -> Option<RequestId> {
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

    /// All of them; none is held then.
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
    fn a_repeated_report_takes_the_place_of_the_one_before() {
        let mut held = LongPolls::default();
        let consumer = |session| {
            let report = consuming(JobId(1));
            feedline_data::messages::ConsumerReport { session: SessionId(session), ..report }
        };
        assert_eq!(held.put(Input::Worker { request: 1, report: working() }), None);
        assert_eq!(held.put(Input::JobStatus { request: 2, job: None }), None);
        assert_eq!(held.put(Input::Consumer { request: 3, report: consumer(1) }), None);
        for request in 4..1_000 {
            assert_eq!(
                held.put(Input::Worker { request, report: working() }),
                Some(if request == 4 { 1 } else { request - 1 })
            );
        }
        assert_eq!(held.put(Input::JobStatus { request: 1_000, job: None }), None);
        assert_eq!(held.put(Input::Consumer { request: 1_001, report: consumer(1) }), Some(3));
        assert_eq!(
            held.put(Input::Consumer { request: 1_002, report: consumer(2) }),
            None,
            "of another session"
        );
        assert_eq!(held.len(), 5);
        let requests: Vec<_> = held.take().iter().filter_map(Input::request).collect();
        assert_eq!(requests, [999, 2, 1_001, 1_000, 1_002]);
        assert_eq!((held.len(), held.put(Input::Worker { request: 1, report: working() })), (0, None));
    }
}
