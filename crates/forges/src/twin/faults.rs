//! Scripted faults of calls.

use super::calls::Request;
use super::state::State;
use std::time::Duration;

/// What goes wrong with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misbehaviour {
    /// This status instead of doing anything.
    Status {
        /// The status: 429, 500, 502, 503, …
        status: u16,
        /// The message.
        message: String,
        /// Value of `retry-after`, in seconds.
        retry_after: Option<u64>,
    },
    /// Done, and answered late in real time.
    SlowReal(Duration),
    /// Done, and answered when the simulated clock has moved this far.
    SlowSimulated(Duration),
    /// Done, but the connection is closed without an answer.
    AnswerLost,
    /// Not done, and the connection is closed.
    RequestLost,
    /// Done twice, as when something on the way sends it again; the second answer is given.
    Duplicated,
    /// Done, and answered with an empty body (ARC #4285).
    EmptyBody,
    /// Done, and answered with half of the body.
    CutBody,
}

impl Misbehaviour {
    /// 429 with `retry-after`.
    pub fn too_many(seconds: u64) -> Self {
        Self::Status {
            status: 429,
            message: "You have exceeded a secondary rate limit (simulated).".to_owned(),
            retry_after: Some(seconds),
        }
    }

    /// A server error.
    pub fn server_error(status: u16) -> Self {
        Self::Status { status, message: "Server Error (simulated)".to_owned(), retry_after: None }
    }
}

/// A scripted fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFault {
    /// Only this method.
    pub method: Option<String>,
    /// Only paths that contain this.
    pub path: String,
    /// How many that fit pass before; with `every`, before each hit.
    pub skip: u32,
    /// How many it hits; `u32::MAX` is for ever.
    pub times: u32,
    /// Whether `skip` calls pass again after each hit: every n-th call.
    pub every: bool,
    /// What goes wrong.
    pub what: Misbehaviour,
    passed: u32,
}

impl CallFault {
    /// A fault of the next call whose path contains `path`.
    pub fn next(method: &str, path: &str, what: Misbehaviour) -> Self {
        let method = (!method.is_empty()).then(|| method.to_owned());
        Self { method, path: path.to_owned(), skip: 0, times: 1, every: false, what, passed: 0 }
    }

    /// After this many calls that fit.
    pub fn after(self, skip: u32) -> Self {
        Self { skip, ..self }
    }

    /// This many times.
    pub fn times(self, times: u32) -> Self {
        Self { times, ..self }
    }

    /// For ever.
    pub fn always(self) -> Self {
        Self { times: u32::MAX, ..self }
    }

    /// Each `n`-th call that fits, for ever.
    pub fn every(self, n: u32) -> Self {
        Self { skip: n.saturating_sub(1), times: u32::MAX, every: true, ..self }
    }
}

impl State {
    /// Plans a fault of calls. Of those that fit a call, the one that was planned first comes.
    pub fn plan_call_fault(&mut self, fault: CallFault) {
        self.call_faults.push(fault);
    }

    /// Takes back all faults of calls.
    pub fn clear_call_faults(&mut self) {
        self.call_faults.clear();
    }

    pub(super) fn fault_for(&mut self, request: &Request) -> Option<Misbehaviour> {
        for fault in &mut self.call_faults {
            let fits = fault.method.as_deref().is_none_or(|method| method == request.method)
                && request.path.contains(&fault.path);
            if !fits || fault.times == 0 {
                continue;
            }
            if fault.passed < fault.skip {
                fault.passed += 1;
                continue;
            }
            if fault.every {
                fault.passed = 0;
            }
            if fault.times != u32::MAX {
                fault.times -= 1;
            }
            return Some(fault.what.clone());
        }
        None
    }
}
