//! States as people see them: a tone (colour and icon) and a word. Each icon has a shape of its own, so that a state
//! can be told without colour.

use forgeyard_model::attempt::AttemptState;
use forgeyard_model::delivery::DeliveryState;
use forgeyard_model::device::DeviceState;
use forgeyard_model::environment::EnvironmentState;
use forgeyard_model::job::{Hold, JobState};
use forgeyard_model::lease::LeaseState;
use forgeyard_model::pipeline::PipelineState;
use forgeyard_model::runner::RunnerState;
use forgeyard_model::verdict::Outcome;
use maud::{Markup, html};

/// What a state means for the one who looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tone {
    /// Done and well.
    Good,
    /// Ended badly.
    Bad,
    /// At work now.
    Active,
    /// Waits for something.
    Waiting,
    /// Needs a look.
    Warn,
    /// Somebody stopped it.
    Stopped,
    /// Not reached, or at rest.
    Idle,
}

impl Tone {
    /// Every tone.
    pub const ALL: [Tone; 7] =
        [Tone::Good, Tone::Bad, Tone::Active, Tone::Waiting, Tone::Warn, Tone::Stopped, Tone::Idle];

    /// Class in the style sheet.
    pub const fn class(self) -> &'static str {
        match self {
            Tone::Good => "t-good",
            Tone::Bad => "t-bad",
            Tone::Active => "t-active",
            Tone::Waiting => "t-waiting",
            Tone::Warn => "t-warn",
            Tone::Stopped => "t-stopped",
            Tone::Idle => "t-idle",
        }
    }

    /// Strokes of the icon in a box of 16 × 16.
    const fn strokes(self) -> &'static str {
        match self {
            // A ring with a tick.
            Tone::Good => "M8 1.5a6.5 6.5 0 1 1 0 13a6.5 6.5 0 0 1 0-13M5 8.3l2.1 2.1L11.2 6",
            // An octagon with a cross.
            Tone::Bad => {
                "M5.3 1.5h5.4l3.8 3.8v5.4l-3.8 3.8H5.3l-3.8-3.8V5.3zM5.7 5.7l4.6 4.6M10.3 5.7l-4.6 4.6"
            }
            // An open ring around a dot.
            Tone::Active => "M8 1.5A6.5 6.5 0 1 1 1.5 8M8 6.8a1.2 1.2 0 1 1 0 2.4a1.2 1.2 0 0 1 0-2.4",
            // A clock.
            Tone::Waiting => "M8 1.5a6.5 6.5 0 1 1 0 13a6.5 6.5 0 0 1 0-13M8 4.5V8l2.4 1.6",
            // A triangle with a mark.
            Tone::Warn => "M8 2l6.5 11.5h-13zM8 6.3v3.4M8 11.3v.5",
            // A ring with a bar.
            Tone::Stopped => "M8 1.5a6.5 6.5 0 1 1 0 13a6.5 6.5 0 0 1 0-13M3.6 3.6l8.8 8.8",
            // A ring with a dash.
            Tone::Idle => "M8 1.5a6.5 6.5 0 1 1 0 13a6.5 6.5 0 0 1 0-13M5.3 8h5.4",
        }
    }

    /// The icon, 16 × 16, placed at a point when it is part of a picture.
    pub fn icon_at(self, x: f32, y: f32) -> Markup {
        html! {
            svg.icon.(self.class()) x=(x) y=(y) width="16" height="16" viewBox="0 0 16 16" aria-hidden="true" {
                path d=(self.strokes()) {}
            }
        }
    }

    /// The icon in a line of text.
    pub fn icon(self) -> Markup {
        html! {
            svg.icon.(self.class()) width="16" height="16" viewBox="0 0 16 16" aria-hidden="true" {
                path d=(self.strokes()) {}
            }
        }
    }
}

/// A state with its tone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// Tone.
    pub tone: Tone,
    /// Word for people.
    pub text: &'static str,
}

const fn word(tone: Tone, text: &'static str) -> Word {
    Word { tone, text }
}

impl Word {
    /// Icon and word in a pill.
    pub fn badge(self) -> Markup {
        html! { span.badge.(self.tone.class()) { (self.tone.icon()) (self.text) } }
    }

    /// A state that is not a row's own: a link of the chain, a limit, a fact.
    pub const fn new(tone: Tone, text: &'static str) -> Word {
        word(tone, text)
    }
}

/// How something ended.
pub const fn outcome(outcome: Outcome) -> Word {
    match outcome {
        Outcome::Succeeded => word(Tone::Good, "succeeded"),
        Outcome::Failed => word(Tone::Bad, "failed"),
        Outcome::TimedOut => word(Tone::Bad, "timed out"),
        Outcome::Canceled => word(Tone::Stopped, "canceled"),
        Outcome::Lost => word(Tone::Warn, "lost by the farm"),
    }
}

/// A job.
pub const fn job(state: &JobState) -> Word {
    match state {
        JobState::Held(Hold::Approval { .. }) => word(Tone::Warn, "needs approval"),
        JobState::Held(Hold::Retry { .. }) => word(Tone::Waiting, "backing off"),
        JobState::Held(Hold::Source | Hold::Artifacts { .. } | Hold::Inspection) => {
            word(Tone::Waiting, "held")
        }
        JobState::Queued => word(Tone::Waiting, "queued"),
        JobState::Placed { .. } => word(Tone::Active, "placed"),
        JobState::Starting { .. } => word(Tone::Active, "starting"),
        JobState::Running { .. } => word(Tone::Active, "running"),
        JobState::Ended { outcome: how } => outcome(*how),
    }
}

/// A pipeline.
pub const fn pipeline(state: &PipelineState) -> Word {
    match state {
        PipelineState::Running => word(Tone::Active, "running"),
        PipelineState::Promoting => word(Tone::Active, "promoting"),
        PipelineState::Environment => word(Tone::Active, "making environment"),
        PipelineState::Succeeded => word(Tone::Good, "succeeded"),
        PipelineState::Failed { .. } => word(Tone::Bad, "failed"),
        PipelineState::Canceled { .. } => word(Tone::Stopped, "canceled"),
    }
}

/// An attempt that has not ended; an ended one is shown by its outcome.
pub fn attempt(state: AttemptState, ended: Option<Outcome>) -> Word {
    match (state, ended) {
        (AttemptState::Ended, Some(how)) => outcome(how),
        (AttemptState::Ended, None) => word(Tone::Idle, "ended"),
        (AttemptState::Placed, _) => word(Tone::Active, "placed"),
        (AttemptState::Starting, _) => word(Tone::Active, "starting"),
        (AttemptState::Running, _) => word(Tone::Active, "running"),
    }
}

/// A machine.
pub const fn runner(state: &RunnerState) -> Word {
    match state {
        RunnerState::Requested => word(Tone::Waiting, "requested"),
        RunnerState::Creating => word(Tone::Active, "creating"),
        RunnerState::Booting => word(Tone::Active, "booting"),
        RunnerState::Ready => word(Tone::Active, "ready"),
        RunnerState::Registered => word(Tone::Active, "registered"),
        RunnerState::Busy => word(Tone::Active, "busy"),
        RunnerState::Leaving => word(Tone::Active, "leaving"),
        RunnerState::Draining => word(Tone::Active, "draining"),
        RunnerState::Deleting => word(Tone::Active, "deleting"),
        RunnerState::Deleted => word(Tone::Idle, "deleted"),
        RunnerState::Failed { .. } => word(Tone::Bad, "failed"),
        RunnerState::Kept { .. } => word(Tone::Warn, "kept"),
    }
}

/// A lease.
pub const fn lease(state: LeaseState) -> Word {
    match state {
        LeaseState::Claimed => word(Tone::Waiting, "claimed"),
        LeaseState::Held => word(Tone::Active, "held"),
        LeaseState::Releasing => word(Tone::Active, "releasing"),
        LeaseState::Ended => word(Tone::Good, "ended"),
        LeaseState::WrittenOff => word(Tone::Warn, "written off"),
    }
}

/// A device.
pub const fn device(state: &DeviceState) -> Word {
    match state {
        DeviceState::Ready => word(Tone::Good, "ready"),
        DeviceState::Leased { .. } => word(Tone::Active, "leased"),
        DeviceState::Resetting { .. } => word(Tone::Waiting, "resetting"),
        DeviceState::Verifying { .. } => word(Tone::Waiting, "verifying"),
        DeviceState::Quarantined { .. } => word(Tone::Warn, "quarantined"),
    }
}

/// An environment.
pub const fn environment(state: &EnvironmentState) -> Word {
    match state {
        EnvironmentState::Requested => word(Tone::Active, "being made"),
        EnvironmentState::Ready { .. } => word(Tone::Good, "ready"),
        EnvironmentState::Failed { .. } => word(Tone::Bad, "failed"),
    }
}

/// A webhook delivery.
pub const fn delivery(state: &DeliveryState) -> Word {
    match state {
        DeliveryState::Stored => word(Tone::Waiting, "stored"),
        DeliveryState::Started { .. } => word(Tone::Good, "started a pipeline"),
        DeliveryState::Settled { .. } => word(Tone::Idle, "settled"),
        DeliveryState::Rejected { .. } => word(Tone::Bad, "rejected"),
    }
}
