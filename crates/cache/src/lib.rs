//! The build cache: one service for every client, readable by forks, writable by each job in its own scope only.
//!
//! - [`scope`]: the tree of scopes, and who reads and writes what. Pure.
//! - [`token`] and [`authority`]: who a caller is, from a small snapshot that the control plane hands over. No SQL.
//! - [`name`] and [`store`]: names of entries for each scope, bytes once for all; a log of segments and an index in memory.
//! - [`tier`]: S3-compatible storage behind the disk.
//! - [`http`]: HTTP/1.1 as build tools speak it, on one thread for each core; `connection` and `exchange` use it.
//! - [`tls`]: the same by TLS, with files; `socket` and `secured` are what bytes go through.
//! - [`surface`]: one module for each protocol; says what a request means and nothing else.
//! - `grpc`: the Remote Execution API, on connections that begin with the preface of HTTP/2.
//! - [`shape`], [`action`] and [`nar`]: whether an entry is what its protocol says it is.
//! - [`signature`]: what Nix's clients want to see signed, signed when it is served.
//! - [`github`]: GitHub's own cache and artifact services, for its official clients.
//! - [`helper`]: the storage helper of ccache, a client of this cache.
//! - [`budget`]: whether a scope is hit as often as it should be, and why not; `watch` looks.
//! - [`identity`]: exchanges tokens of forges for tokens of this cache.
//! - [`service`]: puts them together.
//!
//! What holds everywhere: a caller writes to its own scope or to none; a miss is 404 and never 401; bytes that fail their
//! checksum are never sent, they become a miss. What is larger than a few KiB is checked when it is first sent and then
//! every five minutes (`checked`).

pub mod action;
pub mod admin;
pub mod authority;
pub mod budget;
mod checked;
mod connection;
mod day;
mod exchange;
pub mod figures;
pub mod foreign;
pub mod github;
#[cfg(feature = "grpc")]
pub mod grpc;
pub mod helper;
pub mod http;
pub mod identity;
mod making;
pub mod name;
pub mod nar;
pub mod nix;
mod parked;
mod promise;
pub mod readers;
mod realisation;
pub mod scope;
mod secured;
pub mod service;
pub mod shape;
pub mod signature;
mod socket;
pub mod store;
pub mod surface;
pub mod tier;
pub mod tls;
pub mod token;
pub mod turbo;
pub mod warm;
mod watch;
