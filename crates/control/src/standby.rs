//! A control plane that waits for its turn: of several on one database, one leads and writes.
//!
//! Until it leads it answers every call with 503, says who leads, and stores nothing, so that whoever stands before both
//! (a proxy, a sender of webhooks, an agent) tries the other one. With TLS it does not answer: a caller sees the same as
//! from a control plane that is not there, which is right as well, since nothing was acknowledged.
//!
//! Which one leads is decided by the lease of the epoch in the database, and what keeps an old one from writing is the
//! epoch itself, which is checked in each transaction. The listeners of scale sets run in the one that leads.

use crate::http::error::HttpError;
use crate::serve::Error;
use axum::Router;
use axum::response::{IntoResponse as _, Response};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What answers meanwhile.
pub(crate) struct StandingBy {
    leader: Arc<RwLock<Option<String>>>,
    over: CancellationToken,
    serving: Vec<JoinHandle<()>>,
}

/// Answers on these sockets until [`StandingBy::end`]; the sockets stay the caller's.
pub(crate) fn serve(
    listener: &TcpListener,
    local: Option<&TcpListener>,
    tls: Option<&(PathBuf, PathBuf)>,
) -> Result<StandingBy, Error> {
    let leader = Arc::new(RwLock::new(None));
    let over = CancellationToken::new();
    let plain = if tls.is_some() { None } else { Some(listener) };
    let mut serving = Vec::new();
    for listener in plain.into_iter().chain(local) {
        let listener = again(listener).map_err(Error::Http)?;
        let (leader, asked) = (Arc::clone(&leader), over.clone().cancelled_owned());
        let router = Router::new().fallback(move || {
            let leader = Arc::clone(&leader);
            async move { refusal(leader.read().unwrap_or_else(PoisonError::into_inner).as_deref()) }
        });
        serving.push(tokio::spawn(async move {
            let _ = axum::serve(listener, router).with_graceful_shutdown(asked).await;
        }));
    }
    Ok(StandingBy { leader, over, serving })
}

/// A second handle on a listening socket.
fn again(listener: &TcpListener) -> std::io::Result<TcpListener> {
    use std::os::fd::AsFd as _;
    let socket = listener.as_fd().try_clone_to_owned()?;
    TcpListener::from_std(std::net::TcpListener::from(socket))
}

impl StandingBy {
    /// Somebody else leads.
    pub(crate) fn led_by(&self, holder: &str) {
        *self.leader.write().unwrap_or_else(PoisonError::into_inner) = Some(holder.to_owned());
    }

    /// Its turn has come.
    pub(crate) async fn end(self) {
        self.over.cancel();
        for serving in self.serving {
            // A connection that is kept open by its caller must not hold up the farm.
            let _ = tokio::time::timeout(std::time::Duration::from_secs(1), serving).await;
        }
    }
}

fn refusal(leader: Option<&str>) -> Response {
    let text = match leader {
        Some(leader) => format!("this control plane stands by; {leader} leads"),
        None => "this control plane is starting".to_owned(),
    };
    let error = ApiError::new(ErrorKind::Unavailable, "farm.standby", text)
        .hint("call the one that leads; nothing was stored here");
    HttpError(error).into_response()
}
