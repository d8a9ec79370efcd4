//! Routes with their table. A router cannot be asked what it routes, and who forgets to guard a route does not write
//! it into a list either; so routes are added through [`Routes`], which writes the list itself. Tests walk it.

use crate::app::App;
use axum::Router;
use axum::routing::MethodRouter;

/// A router that knows its paths.
#[derive(Default)]
pub struct Routes {
    router: Router<App>,
    paths: Vec<String>,
}

impl Routes {
    /// No routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route, as [`Router::route`] does.
    #[must_use]
    pub fn route(mut self, path: &str, methods: MethodRouter<App>) -> Self {
        if !self.paths.iter().any(|known| known == path) {
            self.paths.push(path.to_owned());
        }
        Self { router: self.router.route(path, methods), paths: self.paths }
    }

    /// Adds all routes of another.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.paths.extend(other.paths);
        Self { router: self.router.merge(other.router), paths: self.paths }
    }

    /// The paths, each once, with parameters in braces.
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// The router.
    pub fn into_router(self) -> Router<App> {
        self.router
    }
}
