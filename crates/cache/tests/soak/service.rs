//! The service as a process that can be killed, and a small disk.

use super::*;

pub(super) struct Service {
    process: Process,
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
        let with = [
            (FOLDER, folder.display().to_string()),
            ("SOAK_LISTEN", listen.to_string()),
            ("SOAK_CAPACITY", capacity.to_string()),
            ("SOAK_GROUP", group.to_string()),
        ];
        let mut process = Process::start("the_service", with.into_iter().chain(tier));
        let lines = std::iter::from_fn(|| process.line());
        let address = lines.filter_map(|line| line.split("listens on ").nth(1)?.parse().ok()).next();
        Self { address: address.expect("the service starts"), process }
    }

    pub(super) fn memory(&self) -> u64 {
        let status = fs_err::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    pub(super) fn kill(self) -> (SocketAddr, u64) {
        let memory = self.memory();
        self.process.end();
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
