//! `/site/v1`: between the farm and a site. The site dials out, always.

use forgeyard_model::{SiteId, SiteName};
use serde::{Deserialize, Serialize};

pub use forgeyard_model::site::{DesiredSet, SiteReport};

/// `POST` of [`Join`], answers [`Joined`].
pub const JOIN: &str = "/site/v1/join";
/// `GET` of the desired set with [`DesiredQuery`]; waits until it is newer than `after` or the wait is over.
pub const DESIRED: &str = "/site/v1/desired";
/// `POST` of a [`SiteReport`], answers [`Reported`].
pub const REPORT: &str = "/site/v1/report";

/// Version of this contract that both sides must share.
pub const VERSION: u32 = 1;

/// A request to join.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Join {
    /// Version of the contract that the site speaks.
    pub version: u32,
    /// Name of the site.
    pub name: SiteName,
    /// The farm's join token.
    pub join_token: String,
    /// The site's Ed25519 public key, in hexadecimal.
    pub public_key: String,
}

/// The site is known from now on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Joined {
    /// Its id.
    pub site: SiteId,
    /// Token for every later call.
    pub token: String,
}

/// Query of the desired set.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DesiredQuery {
    /// Generation that the site has; 0 = none.
    pub after: u64,
    /// Epoch that the site has; 0 = none. Another epoch is answered at once.
    pub epoch: u64,
    /// Wait at most this long, in seconds; cut to 60.
    pub wait_seconds: u64,
}

/// Answer to a report.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reported {
    /// Newest generation of the desired set.
    pub generation: u64,
    /// Report again at the latest after this many seconds.
    pub report_seconds: u64,
}
