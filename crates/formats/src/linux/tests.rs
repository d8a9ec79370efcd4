use super::*;
use proptest::prelude::*;

#[test]
fn hybrid_host_has_both_versions() {
    let text = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n\
                cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
    let found = hierarchies(&mounts(text));
    assert_eq!(found.v1["cpuacct"], PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"));
    assert_eq!(found.v1["memory"], PathBuf::from("/sys/fs/cgroup/memory"));
    assert_eq!(found.others, [PathBuf::from("/sys/fs/cgroup/systemd")]);
    assert_eq!(found.v2, Some(PathBuf::from("/sys/fs/cgroup/unified")));
}

#[test]
fn unified_host_has_version_2_only() {
    let found = hierarchies(&mounts("cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n"));
    assert!(found.v1.is_empty());
    assert_eq!(found.v2, Some(PathBuf::from("/sys/fs/cgroup")));
}

#[test]
fn a_mount_point_with_a_space_is_read() {
    let found = mounts("/dev/sda1 /mnt/a\\040b\\134c ext4 rw 0 0\n");
    assert_eq!(found[0].target, PathBuf::from("/mnt/a b\\c"));
}

#[test]
fn memberships_keep_a_path_with_colons() {
    let found = memberships("4:memory:/a:b\n0::/\n1:name=systemd:/x\nrubbish\n");
    assert_eq!(found.len(), 3);
    assert_eq!(found[0].path, "/a:b");
    assert_eq!(found[1].hierarchy, 0);
    assert!(found[1].controllers.is_empty());
}

#[test]
fn counters_of_both_versions_are_read() {
    let v1 = flat_keyed("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    let v2 = flat_keyed("low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n");
    assert_eq!((v1["oom_kill"], v2["oom_kill"], v2["max"]), (3, 2, 12));
    assert_eq!(single("max\n"), Some(u64::MAX));
    assert_eq!(single("4096\n"), Some(4096));
}

#[test]
fn a_command_name_with_parentheses_does_not_shift_the_fields() {
    let text = "42 (a) (b) Z) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1 2";
    let stat = process_stat(text).unwrap();
    assert_eq!((stat.state, stat.parent, stat.started), ('S', 1, 777));
}

#[test]
fn an_out_of_memory_line_names_the_victim() {
    let record = "6,1200,5042,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,\
                  oom_memcg=/forgeyard/rnr_1/job,task_memcg=/forgeyard/rnr_1/job/step-0,task=py,pid=9,x,pid=812,uid=1\n SUB=x";
    let record = kernel_record(record).unwrap();
    assert_eq!((record.sequence, record.micros), (1200, 5042));
    let kill = oom_kill(&record.text).unwrap();
    assert_eq!(kill.limited.as_deref(), Some("/forgeyard/rnr_1/job"));
    assert_eq!(kill.group, "/forgeyard/rnr_1/job/step-0");
    assert_eq!((kill.command.as_str(), kill.process), ("py,pid=9,x", 812));
}

proptest! {
    #[test]
    fn no_text_makes_a_reader_panic(text in "\\PC*") {
        memberships(&text);
        hierarchies(&mounts(&text));
        flat_keyed(&text);
        single(&text);
        process_stat(&text);
        kernel_record(&text);
        oom_kill(&text);
    }

    #[test]
    fn near_misses_do_not_panic(text in "(oom-kill:)?(,oom_memcg=)?(,task_memcg=)?(,task=)?[a,=;()0-9\\\\ \n]{0,40}(,pid=)?[0-9]{0,12}") {
        oom_kill(&text);
        process_stat(&text);
        mounts(&text);
        kernel_record(&text);
    }

    #[test]
    fn escaped_paths_read_back(path in "/[a-z \\\\\t]{0,20}") {
        let escaped: String = path
            .chars()
            .map(|c| match c {
                ' ' => "\\040".to_owned(),
                '\t' => "\\011".to_owned(),
                '\\' => "\\134".to_owned(),
                other => other.to_string(),
            })
            .collect();
        let line = format!("none {escaped} tmpfs rw 0 0\n");
        prop_assert_eq!(&mounts(&line)[0].target, &PathBuf::from(path));
    }
}
