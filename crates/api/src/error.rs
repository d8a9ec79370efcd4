//! The one error that every route answers with.

use forgeyard_model::Explanation;
use forgeyard_model::input::{Refusal, RefusalKind};
use serde::{Deserialize, Serialize};

/// What kind of error; each is one HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// 400: the request cannot be understood.
    Invalid,
    /// 401: no or no valid credential.
    Unauthenticated,
    /// 403: the credential does not allow this.
    Forbidden,
    /// 404: no such thing, or not for this caller.
    NotFound,
    /// 409: the state does not allow this.
    Conflict,
    /// 410: the caller was superseded.
    Superseded,
    /// 413: the body is larger than allowed.
    TooLarge,
    /// 416: the range is outside the bytes.
    Range,
    /// 422: the bytes are not what the request says they are.
    Mismatch,
    /// 500: our fault.
    Internal,
    /// 503: not now; nothing was acknowledged.
    Unavailable,
    /// 507: no space left.
    NoSpace,
}

impl ErrorKind {
    /// The HTTP status.
    pub const fn status(self) -> u16 {
        match self {
            ErrorKind::Invalid => 400,
            ErrorKind::Unauthenticated => 401,
            ErrorKind::Forbidden => 403,
            ErrorKind::NotFound => 404,
            ErrorKind::Conflict => 409,
            ErrorKind::Superseded => 410,
            ErrorKind::TooLarge => 413,
            ErrorKind::Range => 416,
            ErrorKind::Mismatch => 422,
            ErrorKind::Internal => 500,
            ErrorKind::Unavailable => 503,
            ErrorKind::NoSpace => 507,
        }
    }
}

/// Body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[error("{message}")]
pub struct ApiError {
    /// What kind.
    pub kind: ErrorKind,
    /// Stable dotted code, for example `token.replayed`.
    pub code: String,
    /// One sentence that is safe to show.
    pub message: String,
    /// What was looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ApiError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, code: code.into(), message: message.into(), evidence: Vec::new(), hint: None }
    }

    /// Says what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same as an explanation, for tables and pages.
    pub fn explanation(&self) -> Explanation {
        Explanation {
            code: self.code.clone(),
            message: self.message.clone(),
            evidence: self.evidence.clone(),
            fix: self.hint.clone(),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal.kind {
            RefusalKind::NotFound => ErrorKind::NotFound,
            RefusalKind::Conflict => ErrorKind::Conflict,
            RefusalKind::Superseded => ErrorKind::Superseded,
            RefusalKind::Forbidden => ErrorKind::Forbidden,
            RefusalKind::Invalid => ErrorKind::Invalid,
        };
        Self {
            kind,
            code: refusal.reason.code,
            message: refusal.reason.message,
            evidence: refusal.reason.evidence,
            hint: refusal.reason.fix,
        }
    }
}
