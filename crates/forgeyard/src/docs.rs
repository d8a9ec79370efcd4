//! The pages in `docs/`, held against the program: what people are told to type and to write is parsed as the program
//! parses it.

use crate::args;
use crate::config::{FileConfig, HostSize};
use forgeyard_forges::github::needs;
use forgeyard_formats::{access, toml_text};

const GITHUB: &str = include_str!("../../../docs/github.md");
const QUEUE: &str = include_str!("../../../docs/queue.md");
const CACHE: &str = include_str!("../../../docs/cache.md");
const CACHE_JOBS: &str = include_str!("../../../docs/cache-jobs.md");
const CACHE_PREWARM: &str = include_str!("../../../docs/cache-prewarm.md");
const PAGES: [(&str, &str); 6] = [
    ("docs/cache-jobs.md", CACHE_JOBS),
    ("docs/cache-prewarm.md", CACHE_PREWARM),
    ("docs/github.md", GITHUB),
    ("docs/queue.md", QUEUE),
    ("docs/from-cirun.md", include_str!("../../../docs/from-cirun.md")),
    ("docs/from-arc-garm.md", include_str!("../../../docs/from-arc-garm.md")),
];

/// Blocks of a page in a language, without the indentation of lists.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let (mut found, mut open): (Vec<String>, Option<String>) = (Vec::new(), None);
    for line in page.lines() {
        match (&mut open, line.trim()) {
            (Some(_), "```") => found.extend(open.take()),
            (Some(text), line) => text.push_str(&format!("{line}\n")),
            (None, line) if line == format!("```{language}") => open = Some(String::new()),
            _ => {}
        }
    }
    assert!(open.is_none(), "a block does not end");
    found
}

fn commands(block: &str) -> Vec<&str> {
    block.lines().filter_map(|line| line.strip_prefix("# ")).collect()
}

#[test]
fn every_command_of_the_pages_is_one_of_the_program_or_of_the_sources() {
    let mut seen = 0;
    for (name, page) in PAGES {
        for block in blocks(page, "console") {
            assert_eq!(commands(&block).len(), block.lines().count(), "{name}: {block}");
            for command in commands(&block) {
                let words: Vec<&str> = command.split(' ').collect();
                match words[0] {
                    "forgeyard" => {
                        args::parse(&words).unwrap_or_else(|error| panic!("{name}: `{command}`: {error}"));
                    }
                    "git" => {}
                    script => {
                        let path = format!("{}/../../{script}", env!("CARGO_MANIFEST_DIR"));
                        assert!(std::path::Path::new(&path).is_file(), "{name}: there is no {script}");
                    }
                }
                seen += 1;
            }
        }
    }
    assert!(seen >= 9, "{seen}");
}

#[test]
fn a_bare_machine_comes_to_its_first_green_job_in_five_commands() {
    let first = &blocks(GITHUB, "console")[0];
    let counted = commands(first);
    assert!(counted.len() <= 5, "{first}");
    for needed in ["forge connect github", "install-runner.sh", "forgeyard up", "forge doctor", "git push"] {
        assert!(counted.iter().any(|command| command.contains(needed)), "{needed} is missing in {first}");
    }
}

#[test]
fn tls_of_the_page_about_the_cache_is_read_and_its_address_fits() {
    let found: Vec<String> =
        blocks(CACHE, "toml").into_iter().filter(|block| block.contains("[cache.tls]")).collect();
    let [text] = found.try_into().unwrap();
    let config = toml_text::read::<FileConfig>("docs/cache.md", &text).unwrap().cache.unwrap();
    let tls = crate::cache_address::tls(&config).unwrap().unwrap();
    assert_eq!(
        (tls.certificate.file_name().unwrap(), tls.local),
        ("chain.pem".as_ref(), config.local_listen)
    );
    assert!(crate::cache_address::of_jobs(&config).unwrap().starts_with("https://"));
}

#[test]
fn configuration_of_the_page_about_github_is_read_as_a_whole_farm() {
    let [farm, forge, grants, sets] = blocks(GITHUB, "toml").try_into().unwrap();
    let text = format!("{farm}{forge}{sets}");
    let mut file = toml_text::read::<FileConfig>("docs/github.md", &text).unwrap();
    // The files that it names are not here.
    file.access = None;
    assert_eq!(file.forges[0].scale_sets[0].labels, ["gpu"]);
    let grants = access::read("docs/github.md", &grants).unwrap();
    let config = file.farm(HostSize { cpus: 4, memory_mib: 16384 }).unwrap();
    let pool = config.pools.iter().find(|pool| pool.runners.is_some()).unwrap();
    assert!(grants.grants[0].resources.contains(pool.name.as_str()), "the grant opens the pool of the page");
    assert_eq!(grants.grants[0].repository.id, Some(config.repositories[0].id));
}

#[test]
fn rules_of_the_page_about_the_queue_are_read_beside_those_of_the_page_about_github() {
    let farm = &blocks(GITHUB, "toml")[0];
    let [rules] = blocks(QUEUE, "toml").try_into().unwrap();
    // A key of the file itself must stand before any section.
    let (keys, sections) = rules.split_at(rules.find('[').unwrap());
    let mut file =
        toml_text::read::<FileConfig>("docs/queue.md", &format!("{keys}{farm}{sections}")).unwrap();
    file.access = None;
    let config = file.farm(HostSize { cpus: 4, memory_mib: 16384 }).unwrap();
    let queue = &config.queue;
    assert_eq!((config.max_running, queue.budgets.len(), queue.caps.people.len()), (32, 1, 1));
}

#[test]
fn permissions_of_the_page_about_github_are_those_that_are_asked_for() {
    let (_, table) = GITHUB.split_once("## What the App may do").unwrap();
    let rows: Vec<(&str, &str, &str)> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| {
            let mut cells = row.split(" | ");
            let mut next = || cells.next().unwrap().trim_end_matches('|').trim();
            (next().trim_end_matches('`'), next(), next())
        })
        .collect();
    assert_eq!(rows.len(), needs::NEEDS.len());
    for (need, (permission, level, why)) in needs::NEEDS.iter().zip(rows) {
        assert_eq!((need.permission, need.level), (permission, level));
        assert!(why.starts_with(need.why.split(" at ").next().unwrap()), "{permission}: {why}");
    }
    for event in needs::EVENTS {
        assert!(GITHUB.contains(&format!("`{event}`")), "{event} is not on the page");
    }
}

#[test]
fn cache_of_the_page_about_jobs_is_read_and_its_scopes_fit() {
    let text = blocks(CACHE_JOBS, "toml").concat();
    let file = toml_text::read::<FileConfig>("docs/cache-jobs.md", &text).unwrap();
    let cache = file.cache.unwrap();
    let declared = cache.scopes.clone();
    let rules = crate::cache_tokens::rules(declared, &cache, &file.repositories).unwrap();
    assert_eq!(rules.len(), 2, "the repository has the scopes that it names, and no usual ones");
    let usual =
        crate::cache_tokens::rules(Vec::new(), &crate::config::CacheConfig::default(), &file.repositories)
            .unwrap();
    let paths: Vec<&str> = usual.iter().map(|rule| rule.path.as_str()).collect();
    for path in paths {
        assert!(CACHE_JOBS.contains(path), "{path}");
    }
}

#[test]
fn lists_of_the_page_about_what_is_fetched_beforehand_are_read_and_can_be_fetched() {
    let text = blocks(CACHE_PREWARM, "toml").concat();
    let cache = toml_text::read::<FileConfig>("docs/cache-prewarm.md", &text).unwrap().cache.unwrap();
    forgeyard_cache::warm::check(&cache.warm).unwrap();
    let list = &cache.warm[0];
    assert_eq!((list.git.len(), list.containers.len(), list.inputs.len()), (2, 1, 1));
    assert!(cache.scopes.iter().any(|rule| rule.path == list.scope));
}
