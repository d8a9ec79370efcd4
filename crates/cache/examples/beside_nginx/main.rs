//! GET and PUT of entries beside nginx (static files, and its DAV module), other servers, and a floor, in one run on one machine.
//!
//! `cargo xtask bench cache` runs it. What is compared is requests for each second of CPU time *of the server*, read from
//! /proc, since the load comes from the same cores: the median of five turns that the servers take one behind the other.
//! Ours checks a token, a checksum and (on PUT) a digest; none of the others checks anything. Then the time of a request at half
//! of the load that each can do. See `load` for the load, `peers` for the others and what their acknowledgement is worth, `floor`
//! for the floor. Prints lines of JSON; says `SKIPPED` where nginx is missing. With the argument `quick` it leaves out all but nginx
//! and the floor, with numbers all sizes but these, in KiB. With the argument `tls` ours and nginx speak TLS, and ours without it stands
//! beside them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measuring program stops at the first surprise"
)]

mod floor;
mod load;
#[path = "../measure/mod.rs"]
mod measure;
mod peers;

use load::{Act, Done, load};
use measure::Figure;
use peers::Server;
use std::os::unix::fs::PermissionsExt as _;

const TURNS: usize = 5;

fn main() {
    measure::serve_if_asked(false);
    floor::serve_if_asked();
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let tls = std::env::args().any(|argument| argument == "tls");
    let mut servers = if tls { peers::by_tls(folder.path()) } else { peers::all(folder.path()) };
    if !tls && std::env::args().any(|argument| argument == "quick") {
        servers.retain(|server| matches!(server.name, "ours" | "the floor" | "nginx"));
    }
    if !servers.iter().any(|server| server.name == "nginx") {
        println!("SKIPPED: nginx is not installed (scripts/install-clients.sh)");
        return;
    }
    // sizes in KiB; all when none is named
    let sizes: Vec<usize> =
        std::env::args().filter_map(|argument| Some(argument.parse::<usize>().ok()? << 10)).collect();
    for (size, count) in [(1usize << 10, 2000usize), (16 << 10, 1000), (128 << 10, 200), (8 << 20, 4)] {
        if !sizes.is_empty() && !sizes.contains(&size) {
            continue;
        }
        let name =
            if size >= 1 << 20 { format!("{} MiB", size >> 20) } else { format!("{} KiB", size >> 10) };
        for (act, rounds, aim) in [(Act::Put, 1, 4.0), (Act::Get, 4, 1.3)] {
            let what = format!("cache {} {name}{}", act.name(), if tls { " by TLS" } else { "" });
            let aim = (!tls && size <= 16 << 10).then_some(aim);
            compare(&what, &servers, act, size, count, rounds, aim);
            if size <= 16 << 10 {
                at_half_load(&what, &servers, act, size, count);
            }
        }
    }
}

fn compare(
    what: &str,
    servers: &[Server],
    act: Act,
    size: usize,
    count: usize,
    rounds: usize,
    aim: Option<f64>,
) {
    let able: Vec<&Server> = servers.iter().filter(|server| size <= server.largest).collect();
    let mut costs: Vec<Vec<f64>> = able.iter().map(|_| Vec::new()).collect();
    for turn in 0..TURNS {
        for (server, costs) in able.iter().zip(&mut costs) {
            let done = load(server, act, size, &(turn * count..(turn + 1) * count), rounds, None);
            eprintln!("  {what} {}: {:.0} a second, {:.1} µs of CPU", server.name, done.rate, done.cpu * 1e6);
            costs.push(done.cpu);
        }
    }
    let rates: Vec<f64> = costs.into_iter().map(|costs| 1.0 / measure::median(costs)).collect();
    let text = format!("{what} per CPU second");
    let named = || able.iter().map(|server| server.name).zip(&rates).skip(1);
    // nginx first, to which the aims belong
    for (name, rate) in
        named().filter(|(name, _)| *name == "nginx").chain(named().filter(|(name, _)| *name != "nginx"))
    {
        let aim = aim.filter(|_| name == "nginx").map(|aim| ("at least", aim * rate));
        Figure { text: &text, value: rates[0], unit: "/s", peer: Some((name, *rate)), aim }.print();
    }
}

/// Entries that `compare` wrote are read; new ones are written.
fn at_half_load(what: &str, servers: &[Server], act: Act, size: usize, count: usize) {
    let p99 = |name: &str| {
        let server = servers.iter().find(|server| server.name == name).unwrap();
        let (first, again) = if act == Act::Put { (TURNS * count, 1) } else { (0, 2) };
        let numbers = first..first + 4 * count;
        let Done { rate, .. } = load(server, act, size, &(first..first + count), 1, None);
        let begin = if act == Act::Put { first + count } else { first };
        let mut waited =
            load(server, act, size, &(begin..begin + numbers.len()), again, Some(rate / 2.0)).waited;
        waited.sort_unstable_by(f64::total_cmp);
        waited[waited.len() * 99 / 100] * 1e3
    };
    let text = format!("{what}, p99 at half load");
    let (ours, nginx) = (p99("ours"), p99("nginx"));
    Figure {
        text: &text,
        value: ours,
        unit: "ms",
        peer: Some(("nginx", nginx)),
        aim: Some(("at most", 5.0)),
    }
    .print();
}
