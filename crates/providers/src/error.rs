//! What can go wrong while making machines.

use forgeyard_model::Explanation;
use forgeyard_model::resources::Limit;

/// An error of a provider.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host cannot enforce a limit that the request needs. Going on would run the job without it.
    #[error("this host cannot enforce the {limit:?} limit: {reason}")]
    CannotEnforce {
        /// Which limit.
        limit: Limit,
        /// Why not.
        reason: String,
    },
    /// The image cannot be used. Going on would show the job something else than it asked for.
    #[error("image {image} cannot be used: {reason}")]
    Image {
        /// Which image.
        image: String,
        /// Why not.
        reason: String,
    },
    /// A step of making, finding or removing a machine failed.
    #[error("{action} failed for {object}")]
    Failed {
        /// What was being done.
        action: &'static str,
        /// To what.
        object: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A program that the provider needs is missing or answered wrongly.
    #[error("{program}: {reason}")]
    Program {
        /// Which program.
        program: String,
        /// What it said.
        reason: String,
    },
    /// Something of the machine is still there. The lease must stay.
    #[error("{left} is still there after removing {runner}")]
    Left {
        /// The machine.
        runner: String,
        /// What is left.
        left: String,
    },
}

impl Error {
    /// The same for people, with a fix where there is one.
    pub fn explanation(&self) -> Explanation {
        let (code, fix) = match self {
            Error::CannotEnforce { .. } => (
                "provider.cannot_enforce",
                Some(
                    "use a pool whose hosts enforce the limit, or see `forgeyard doctor` for what is missing",
                ),
            ),
            Error::Image { .. } => ("provider.image", Some("check the image in forgeyard.toml")),
            Error::Failed { .. } => ("provider.failed", None),
            Error::Program { .. } => ("provider.program", Some("run `forgeyard doctor`")),
            Error::Left { .. } => {
                ("provider.left_behind", Some("see the runner's folder on the site; the lease stays held"))
            }
        };
        let mut explanation = Explanation::new(code, self.to_string());
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            explanation = explanation.with(cause.to_string());
            source = cause.source();
        }
        explanation.fix = fix.map(str::to_owned);
        explanation
    }
}
