//! The service as a process that can be killed, and a small disk.

use super::*;

pub(super) struct Service {
    pub(super) child: Child,
    pub(super) address: SocketAddr,
}

impl Service {
    pub(super) fn start(
        folder: &Path,
        listen: SocketAddr,
        room: Room,
        group: bool,
        tier: Option<SocketAddr>,
    ) -> Self {
        let capacity: u64 = match room {
            Room::Enough => 64 << 30,
            Room::Little => 128 << 20,
            Room::Tier => 48 << 20,
            Room::FullDisk => 1 << 30,
        };
        let tier = tier.map(|address| ("SOAK_TIER", address.to_string()));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "the_service", "--nocapture"])
            .env(FOLDER, folder)
            .env("SOAK_LISTEN", listen.to_string())
            .env("SOAK_CAPACITY", capacity.to_string())
            .env("SOAK_GROUP", group.to_string())
            .envs(tier)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.filter_map(|line| line.split("listens on ").nth(1)?.parse().ok()).next();
        Self { child, address: address.expect("the service starts") }
    }

    pub(super) fn memory(&self) -> u64 {
        let status = fs_err::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    pub(super) fn kill(mut self) -> (SocketAddr, u64) {
        let memory = self.memory();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.address, memory)
    }
}

/// A small disk of its own, or nothing where mounting is not allowed.
pub(super) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(super) fn new(folder: &Path) -> Option<Self> {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=96m", "soak"]).arg(folder).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(folder.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
