//! `cargo xtask bench`: every figure in one go, each beside a peer or floor that was measured in the same run.
//!
//! The parts are programs of the crates that they measure. Each prints its figures as lines of JSON, and this puts them
//! into one table. Nothing here is a test: an aim that is missed is said and fails nothing, since the machine may be
//! busy; that is why load and cores stand above the table.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A part: its name, and what runs it.
type Part = (&'static str, fn(&Path) -> Result<Vec<Figure>>);

const PARTS: [Part; 16] = [
    ("transitions", |root| example(root, "forgeyard-db", "transitions", &["--figures", "--seconds", "1"])),
    ("webhooks", |root| example(root, "forgeyard-control", "figures", &["webhooks"])),
    ("burst", |root| example(root, "forgeyard-control", "figures", &["burst"])),
    ("create", |root| example(root, "forgeyard-control", "figures", &["create"])),
    ("decisions", |root| example(root, "forgeyard-control", "figures", &["decisions"])),
    ("restart", |root| example(root, "forgeyard-control", "figures", &["restart"])),
    ("artifacts", |root| example(root, "forgeyard-control", "figures", &["artifacts"])),
    ("cache", |root| cache(root, "beside_nginx", &[])),
    ("cache-tls", |root| cache(root, "beside_nginx", &["--", "tls"])),
    ("cache-start", |root| cache(root, "start", &[])),
    ("cache-find-missing", |root| cache(root, "find_missing", &[])),
    ("cache-at-rest", |root| cache(root, "at_rest", &[])),
    ("cache-clients", crate::cache_clients::figures),
    ("sandbox", sandbox),
    ("tour", tour),
    ("server", crate::idle::figures),
];

/// One line of the table.
pub(crate) struct Figure {
    pub(crate) text: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// Peer or floor, measured in the same run.
    pub(crate) peer: Option<(String, f64)>,
    /// `at least` or `at most`, and how much.
    pub(crate) aim: Option<(String, f64)>,
}

/// Runs the parts with these names, or all of them, and prints the table.
pub(crate) fn run(root: &Path, names: &[String]) -> Result<()> {
    let known: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
    if let Some(wrong) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no part `{wrong}`: the parts are {}", known.join(", "));
    }
    println!("{}", machine());
    let begin = Instant::now();
    let (mut rows, mut missed, mut failed) = (Vec::new(), 0, Vec::new());
    for (name, part) in PARTS.iter().filter(|(name, _)| names.is_empty() || names.iter().any(|n| n == name)) {
        eprintln!("{name} …");
        match part(root) {
            Ok(figures) => {
                for figure in figures {
                    let row = row(&figure);
                    missed += usize::from(row[5] == "MISSED");
                    rows.push(row);
                }
            }
            Err(error) => failed.push(format!("{name}: {error:#}")),
        }
    }
    print_table(&["figure", "value", "peer or floor", "ratio", "aim", ""], &rows);
    println!("{}, {:.0} s, builds included", machine(), begin.elapsed().as_secs_f64());
    if missed > 0 {
        println!(
            "{missed} aims were missed in this run; see the load of the machine before drawing conclusions"
        );
    }
    if failed.is_empty() { Ok(()) } else { bail!("parts that gave no figures:\n{}", failed.join("\n")) }
}

/// What a reader must know of the machine.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches(['\t', ' ', ':']);
    let load = read("/proc/loadavg");
    let load: Vec<&str> = load.split_whitespace().take(3).collect();
    let memory = read("/proc/meminfo");
    let memory = memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    let gib = memory.unwrap_or_default() >> 20;
    format!("machine: {cores} cores ({model}), {gib} GiB, load average {}", load.join(" "))
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn row(figure: &Figure) -> Vec<String> {
    let unit = &figure.unit;
    let ratio = figure.peer.as_ref().filter(|peer| peer.1 > 0.0).map(|peer| figure.value / peer.1);
    let met = figure
        .aim
        .as_ref()
        .map(|(kind, aim)| if kind == "at least" { figure.value >= *aim } else { figure.value <= *aim });
    vec![
        figure.text.clone(),
        format!("{} {unit}", number(figure.value)),
        figure.peer.as_ref().map_or_else(String::new, |(name, value)| format!("{name}: {}", number(*value))),
        ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
        figure.aim.as_ref().map_or_else(String::new, |(kind, aim)| format!("{kind} {}", number(*aim))),
        met.map_or_else(String::new, |met| if met { "met".to_owned() } else { "MISSED".to_owned() }),
    ]
}

fn print_table(head: &[&str], rows: &[Vec<String>]) {
    let head: Vec<String> = head.iter().map(|text| (*text).to_owned()).collect();
    let lines = || std::iter::once(&head).chain(rows);
    let width = |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for line in lines() {
        let cells = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width.saturating_sub(cell.chars().count()))));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// Figures among the lines of an output; everything else is left out.
pub(crate) fn figures_in(text: &str) -> Vec<Figure> {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| figure(&line)).collect()
}

fn figure(line: &Value) -> Option<Figure> {
    let text = |key: &str| line[key].as_str().map(str::to_owned);
    Some(Figure {
        text: text("figure")?,
        value: line["value"].as_f64()?,
        unit: text("unit")?,
        peer: text("peer").zip(line["peer_value"].as_f64()),
        aim: text("aim").zip(line["aim_value"].as_f64()),
    })
}

fn collect(mut command: Command) -> Result<Vec<Figure>> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start {command:?}"))?;
    let figures = figures_in(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        bail!("{command:?} ended with {}", output.status);
    }
    if figures.is_empty() {
        bail!("{command:?} printed no figure: {}", String::from_utf8_lossy(&output.stdout).trim());
    }
    Ok(figures)
}

fn example(root: &Path, package: &str, name: &str, arguments: &[&str]) -> Result<Vec<Figure>> {
    let fast = crate::cargo::optimised();
    let mut all = vec!["run", "--quiet"];
    all.extend(fast.iter().map(String::as_str));
    all.extend(["--package", package, "--example", name, "--"]);
    all.extend(arguments);
    collect(crate::cargo::command(root, &all))
}

/// As it is shipped: the cache is held against a peer that is. The profile is that of a release and has a folder of its own, so that
/// third-party crates are compiled for it once.
fn cache(root: &Path, name: &str, more: &[&str]) -> Result<Vec<Figure>> {
    let arguments =
        ["run", "--quiet", "--profile", "measure", "--package", "forgeyard-cache", "--example", name];
    collect(crate::cargo::command(root, &[&arguments[..], more].concat()))
}

fn sandbox(root: &Path) -> Result<Vec<Figure>> {
    let arguments = ["test", "--quiet", "--package", "forgeyard-agent", "--test", "measure", "--"];
    collect(crate::cargo::command(root, &[&arguments[..], &["--ignored", "--nocapture"]].concat()))
}

/// A whole tour, which writes where its time went.
fn tour(root: &Path) -> Result<Vec<Figure>> {
    let file = std::env::temp_dir().join(format!("forgeyard-tour-figures-{}", std::process::id()));
    let binary = crate::idle::built(root)?;
    let mut command = Command::new(&binary);
    command.args(["tour", "--figures"]).arg(&file).current_dir(root);
    let status = command.stdout(Stdio::null()).stderr(Stdio::inherit()).status();
    let status = status.with_context(|| format!("cannot start {}", binary.display()))?;
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    if !status.success() {
        bail!("the tour ended with {status}");
    }
    Ok(figures_in(&text))
}

/// The median of a few durations, in milliseconds.
pub(crate) fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_figures_are_taken() {
        let text = "warming up\n{\"figure\":\"a\",\"value\":2.5,\"unit\":\"ms\",\"peer\":\"b\",\"peer_value\":1.0,\"aim\":\"at most\",\"aim_value\":2.0}\n{\"other\":1}\n";
        let figures = figures_in(text);
        assert_eq!(figures.len(), 1);
        assert_eq!(row(&figures[0]), ["a", "2.50 ms", "b: 1.00", "2.50", "at most 2.00", "MISSED"]);
    }

    #[test]
    fn figure_without_aim_is_neither_met_nor_missed() {
        let figures =
            figures_in("{\"figure\":\"a\",\"value\":250,\"unit\":\"/s\",\"peer\":null,\"aim\":null}");
        assert_eq!(row(&figures[0]), ["a", "250 /s", "", "", "", ""]);
    }
}
