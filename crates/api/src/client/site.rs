//! The farm as a site sees it: join, ask for the desired set, report.

use super::http::{self, ClientError, HttpOptions};
use crate::site::{DESIRED, DesiredQuery, DesiredSet, JOIN, Join, Joined, REPORT, Reported, SiteReport};
use forgeyard_model::Secret;
use std::time::Duration;

/// The desired set is waited for this much longer than the farm was asked to wait.
const POLL_MARGIN: Duration = Duration::from_secs(15);

/// Client of `/site/v1`.
#[derive(Debug, Clone)]
pub struct SiteClient {
    http: reqwest::Client,
    base: String,
    token: Option<Secret>,
}

impl SiteClient {
    /// A client of the farm at this address; it has no token yet.
    pub fn new(farm_url: &str, options: &HttpOptions) -> Result<Self, ClientError> {
        Ok(Self { http: http::build(options)?, base: http::base(farm_url)?, token: None })
    }

    /// The same client with the site's token.
    #[must_use]
    pub fn with_token(mut self, token: Secret) -> Self {
        self.token = Some(token);
        self
    }

    /// Joins the farm; the only call without a token of the site.
    pub async fn join(&self, join: &Join) -> Result<Joined, ClientError> {
        let request = self.http.post(format!("{}{JOIN}", self.base)).json(join);
        http::json(format!("POST {}{JOIN}", self.base), request).await
    }

    /// The desired set, at once when it is another than the query says, else after the wait.
    pub async fn desired(&self, query: &DesiredQuery) -> Result<DesiredSet, ClientError> {
        let DesiredQuery { after, epoch, wait_seconds } = query;
        let url = format!("{}{DESIRED}?after={after}&epoch={epoch}&wait_seconds={wait_seconds}", self.base);
        let wait = Duration::from_secs(*wait_seconds).saturating_add(POLL_MARGIN);
        let request = self.authorised(self.http.get(url)).timeout(wait);
        http::json(format!("GET {}{DESIRED}", self.base), request).await
    }

    /// Reports what the site sees.
    pub async fn report(&self, report: &SiteReport) -> Result<Reported, ClientError> {
        let request = self.authorised(self.http.post(format!("{}{REPORT}", self.base)).json(report));
        http::json(format!("POST {}{REPORT}", self.base), request).await
    }

    fn authorised(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token.expose()),
            None => request,
        }
    }
}
