//! What `forgeyard cache` prints of a cache: tables and lines.

use crate::output::table_or;
use forgeyard_cache::admin::Stat;
use forgeyard_cache::readers::Reading;
use forgeyard_cache::tier::TierStat;

pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        _ => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

pub(super) fn stat_table(stat: &Stat) -> String {
    let held = |scope: &str| stat.scopes.iter().find(|held| held.scope == scope);
    let mut rows = Vec::new();
    for traffic in &stat.traffic {
        let reads = traffic.hits + traffic.parent_hits + traffic.misses;
        let rate = match reads {
            0 => "-".to_owned(),
            reads => format!("{:.1} %", (traffic.hits + traffic.parent_hits) as f64 * 100.0 / reads as f64),
        };
        rows.push(vec![
            traffic.scope.clone(),
            traffic.surface.clone(),
            rate,
            traffic.hits.to_string(),
            traffic.parent_hits.to_string(),
            traffic.misses.to_string(),
            traffic.writes.to_string(),
            traffic.denied.to_string(),
            traffic.mismatches.to_string(),
            held(&traffic.scope).map_or_else(String::new, |held| size(held.bytes)),
        ]);
    }
    let head = [
        "scope",
        "client",
        "hit rate",
        "own",
        "parents",
        "misses",
        "writes",
        "denied",
        "mismatches",
        "holds",
    ];
    table_or("nothing was asked since the start", &head, &rows)
        + &room_line(stat)
        + &saved_line(stat)
        + &stat.tier.as_ref().map_or_else(String::new, tier_line)
        + &crate::commands::prewarm::failing(&stat.warm)
}

/// A time in the two largest units that it has.
fn span(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// What hits saved: bytes, time, and money where an hour has a price.
fn saved_line(stat: &Stat) -> String {
    let sent = stat.traffic.iter().map(|one| one.bytes_out).fold(0, u64::saturating_add);
    let known: Vec<u64> = stat.traffic.iter().filter_map(|one| one.saved_millis(&stat.traffic)).collect();
    if known.is_empty() {
        return format!("\n\nsaved: {} sent; not known yet how much work that is\n", size(sent));
    }
    let millis = known.into_iter().fold(0, u64::saturating_add);
    let money = stat.price_per_cpu_hour.map_or_else(
        || "; `price-per-cpu-hour` in [cache] makes it an amount of money".to_owned(),
        |price| format!(", {} at {price} for an hour of a CPU", price.for_millis(millis).rounded()),
    );
    format!("\n\nsaved: {} sent, about {} of work{money}\n", size(sent), span(millis))
}

/// What is on disk, and what compression saves of it.
fn room_line(stat: &Stat) -> String {
    let (totals, shrunk) = (&stat.totals, &stat.shrunk);
    let all = totals.disk_bytes + totals.saved_bytes;
    let percent = (totals.saved_bytes * 100).checked_div(all).unwrap_or(0);
    let now = match shrunk.on {
        true => format!(
            "since the start {} of {} bodies became {}, {} stayed as they are, {} because they are read, in {} s of one core",
            size(shrunk.bytes_in),
            shrunk.bodies,
            size(shrunk.bytes_out),
            shrunk.left + shrunk.read,
            shrunk.read,
            shrunk.busy_millis / 1000
        ),
        false => "nothing more is compressed".to_owned(),
    };
    format!(
        "\n\non disk: {} of {}, {} if nothing were compressed ({percent} % saved); {now}",
        size(totals.disk_bytes),
        size(stat.capacity_bytes),
        size(all)
    )
}

/// What there is to say of the storage behind the disk.
fn tier_line(tier: &TierStat) -> String {
    let trouble = if tier.broken { "; it does not answer, so nobody waits for it" } else { "" };
    format!(
        "\n\ntier: {}{trouble}; {} segments sent ({}), {} wait, {} went unsent; {} names beyond this disk, {} of others; \
         {} entries brought back, {} were not there, {} failures, {} reads did not wait\n",
        tier.state,
        tier.sent_segments,
        size(tier.sent_bytes),
        tier.waiting_segments,
        tier.unsent_segments,
        tier.names,
        tier.foreign_names,
        tier.brought,
        tier.absent,
        tier.failures,
        tier.skipped,
    )
}

pub(super) fn readings_table(readings: &[Reading]) -> String {
    let row = |reading: &Reading| {
        let principal = match reading.reader.principal.as_str() {
            "" => "(no token)",
            principal => principal,
        };
        vec![
            principal.to_owned(),
            reading.reader.run.clone().unwrap_or_default(),
            reading.entries.to_string(),
            reading.reads.to_string(),
            reading.first.to_string(),
            reading.last.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = readings.iter().map(row).collect();
    table_or("nobody read them", &["reader", "run", "entries", "reads", "first", "last"], &rows)
}
