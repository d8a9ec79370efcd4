use super::*;

#[test]
fn price_of_a_cpu_is_written_or_that_of_a_build_for_one_of_its_cpus() {
    let price = |text: &str| {
        let file: FileConfig = toml_text::read("test", text).unwrap();
        file.price_per_cpu_hour(&file.farm(HostSize { cpus: 4, memory_mib: 8192 }).unwrap())
    };
    assert_eq!(price(""), None);
    assert_eq!(price("[[queue.prices]]\nflavor = 'gpu'\nper-hour = 8\n"), None, "another shape");
    let by_queue = "[[queue.prices]]\nflavor = 'build'\nper-hour = 1\n";
    assert_eq!(price(by_queue).unwrap().to_string(), "0.25");
    let written = format!("[cache]\nprice-per-cpu-hour = 0.04\n{by_queue}");
    let price = price(&written).unwrap();
    assert_eq!(price.to_string(), "0.04");
    assert_eq!(price.for_millis(90 * 60_000).to_string(), "0.06");
    assert_eq!(price.for_millis(u64::MAX).rounded().to_string(), "204963823041.22");
}

#[test]
fn list_of_what_is_fetched_beforehand_names_a_pool_that_there_is() {
    let farm = |pool: &str| {
        let text = format!(
            "[cache]\n[[cache.scopes]]\npath = 'pre'\n[[cache.warm]]\nname = 'a'\nscope = 'pre'\npools = ['{pool}']\n"
        );
        toml_text::read::<FileConfig>("test", &text).unwrap().farm(HostSize { cpus: 4, memory_mib: 8192 })
    };
    farm("local").unwrap();
    assert!(farm("nowhere").unwrap_err().to_string().contains("pool `nowhere`"));
}

#[test]
fn an_empty_file_makes_a_whole_farm() {
    let config = FileConfig::default().farm(HostSize { cpus: 2, memory_mib: 8192 }).unwrap();
    assert_eq!(config.pools.len(), 1);
    assert!(config.access.grants.is_empty(), "nobody is allowed anything by default");
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_one() {
    let error = toml_text::read::<FileConfig>("forgeyard.toml", "max-runing = 3\n").unwrap_err().to_string();
    assert!(error.contains("max-runing") && error.contains("max-running"), "{error}");
}

/// Numbers are unique at one forge only.
#[test]
fn repositories_of_two_forges_with_one_number_are_two_repositories() {
    let of = |forge: &str| {
        format!(
            "[[repositories]]\nforge = \"{forge}\"\nid = 7\nname = \"a/b\"\nsource = \"https://x.example/a/b.git\"\n\
             protected = []\nchannel = \"gpu\"\n"
        )
    };
    let text = format!("{}{}", of("github"), of("ghes"));
    let config: FileConfig = toml_text::read("forgeyard.toml", &text).unwrap();
    let config = config.farm(HostSize { cpus: 2, memory_mib: 8192 }).unwrap();
    let of = |text: &str| config.repository_meant(&text.parse().unwrap()).map(|known| known.forge.as_str());
    assert_eq!((of("github:7"), of("ghes:7"), of("lab:7")), (Some("github"), Some("ghes"), None));
    // A number alone is of the home forge.
    assert_eq!((of("7"), of("8")), (Some("github"), None));
}

fn two_forges(access: &str) -> Result<FarmConfig> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.toml");
    fs_err::write(&path, access).unwrap();
    let text = format!(
        "access = \"{}\"\n[[forges]]\nname = \"github\"\nkind = \"github\"\n[[forges]]\nname = \"lab\"\nkind = \"forgejo\"\n",
        path.display()
    );
    let file: FileConfig = toml_text::read("forgeyard.toml", &text).unwrap();
    file.farm(HostSize { cpus: 2, memory_mib: 8192 })
}

#[test]
fn number_that_stands_alone_is_refused_where_it_could_be_of_two_forges() {
    let said = |access: &str| {
        let error = two_forges(access).unwrap_err();
        let fix = error.downcast_ref::<Wrong>().unwrap().how().unwrap_or_default().to_owned();
        format!("{error}\n{fix}")
    };
    let text = said("[lists]\nops = [7]\n");
    for part in ["list `ops` names 7", "github, lab", "forge = \"github\"", "\"lab:7\""] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(said("[terms-accepted]\n7 = 1\n").contains("`terms-accepted` names 7"));
    assert!(said("[lists]\nops = [\"ghes:7\"]\n").contains("\"ghes:7\""));
    assert!(said("forge = \"ghes\"\n").contains("about the forge `ghes`"));
    let config = two_forges("forge = \"lab\"\n[lists]\nops = [7, \"github:7\"]\n").unwrap();
    assert_eq!(config.access.home(), "lab");
    assert!(two_forges("[lists]\nops = [\"lab:7\"]\n").is_ok());
}

#[test]
fn number_that_stands_alone_is_of_the_only_forge() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.toml");
    fs_err::write(&path, "[lists]\nops = [7]\n").unwrap();
    let text = format!("access = \"{}\"\n[[forges]]\nname = \"lab\"\nkind = \"forgejo\"\n", path.display());
    let file: FileConfig = toml_text::read("forgeyard.toml", &text).unwrap();
    let access = file.farm(HostSize { cpus: 2, memory_mib: 8192 }).unwrap().access;
    let at = |forge: &str| access.holds(&access.lists["ops"], &forge.parse().unwrap(), 7);
    assert!(at("lab") && !at("github"));
}

#[test]
fn pools_of_the_page_about_pools_are_read() {
    let declared = r#"
        [[images]]
        name = "host"
        root = "host"
        [use-flavors]
        plan = "cpu"
        build = "cpu"
        test = "cpu"
        gpu-test = "gpu-runner"
    "#;
    let flavor = |name: &str| {
        format!(
            "[[flavors]]\nname = \"{name}\"\ncpu-millis = 1000\nmemory-mib = 512\ndisk-mib = 512\ntime-limit-seconds = 60\n"
        )
    };
    let page = include_str!("../../../../docs/pools.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let (text, rest) = rest.split_once("```").unwrap();
    let (fast, _) = rest.split_once("```toml\n").unwrap().1.split_once("```").unwrap();
    // How fast a pool starts machines is written where the pool is.
    let text = text.replacen("max = 16", &format!("max = 16\n{fast}"), 1);
    let all = [declared, &flavor("cpu"), &flavor("gpu-runner"), &text].join("\n");
    let file = toml_text::read::<FileConfig>("docs/pools.md", &all).unwrap();
    let config = file.farm(HostSize { cpus: 4, memory_mib: 16384 }).unwrap();
    assert_eq!((config.pools[0].schedule.len(), config.pools[0].launches.burst), (2, 20));
    let wrong = all.replacen("America/Los_Angeles", "America/Lost_Angeles", 1);
    let file = toml_text::read::<FileConfig>("docs/pools.md", &wrong).unwrap();
    let error = file.farm(HostSize { cpus: 4, memory_mib: 16384 }).unwrap_err().to_string();
    assert!(error.contains("America/Lost_Angeles"), "{error}");
}

#[test]
fn a_flavor_that_is_used_must_be_declared() {
    let config = FileConfig { flavors: Some(Vec::new()), ..FileConfig::default() };
    let error = config.farm(HostSize { cpus: 2, memory_mib: 8192 }).unwrap_err().to_string();
    assert!(error.contains("not declared under [[flavors]]"), "{error}");
}
/// What `docs/queue.md` shows about caps and budgets, and what is said about mistakes.
#[test]
fn rules_of_the_queue_are_read_and_mistakes_are_named() {
    let read = |rules: &str| {
        let repository = "[[repositories]]\nforge = 'github'\nid = 42\nname = 'octo/demo'\nsource = '/x'\n\
                          protected = ['main']\nchannel = 'main'\n";
        let file = toml_text::read::<FileConfig>("forgeyard.toml", &format!("{repository}{rules}"));
        file.map_err(|error| error.to_string()).and_then(|file| {
            file.farm(HostSize { cpus: 2, memory_mib: 8192 }).map_err(|error| error.to_string())
        })
    };
    let rules = "[queue]\norder = ['postsubmit', 'presubmit', 'nightly']\n[queue.caps]\nperson = 2\n\
                 [queue.caps.people]\n1001 = 5\n[queue.caps.organisations]\nocto = 7\n\
                 [[queue.repositories]]\nforge = 'github'\nid = 42\nmax-running = 3\nweight = 2\n\
                 [[queue.prices]]\npool = 'local'\nper-hour = 2.5\n\
                 [[queue.budgets]]\nname = 'octo'\norganisation = 'octo'\nminutes = 600\nmoney = '40'\n";
    let config = read(rules).unwrap();
    assert_eq!(config.queue.caps.people[&1001.into()], 5);
    assert_eq!(config.queue.prices[0].per_hour.to_string(), "2.50");
    for (mistake, part) in [
        ("[queue.caps]\npersom = 2\n", "`persom`; did you mean"),
        ("[[queue.repositories]]\nforge = 'github'\nid = 43\n", "repository 43 at github"),
        ("[[queue.prices]]\npool = 'nowhere'\nper-hour = 1\n", "pool `nowhere`"),
        ("[[queue.prices]]\nper-hour = 'much'\n", "`much` is not an amount"),
        ("[[queue.budgets]]\nname = 'b'\n", "limits nothing"),
        ("[queue]\norder = ['weekly']\n", "weekly"),
    ] {
        let error = read(mistake).unwrap_err();
        assert!(error.contains(part), "{mistake}: {error}");
    }
}
