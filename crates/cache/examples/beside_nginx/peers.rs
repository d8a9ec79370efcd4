//! Servers that somebody would use in the place of ours, as they are set up for that, each in a process of its own below a folder.
//!
//! None is asked for a sync before it answers, and neither is ours: an entry is acknowledged when the kernel has it (the three web
//! servers, SeaweedFS), or when it is in the memory of the server and nowhere else (Redis, memcached). Whoever is not installed is left out.

use crate::measure;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How a server is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http,
    Redis,
    Memcached,
}

/// A server that runs until this is dropped.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) speaks: Speaks,
    pub(crate) address: SocketAddr,
    /// What stands before a key.
    pub(crate) path: &'static str,
    /// Line of a head, or nothing.
    pub(crate) authorization: String,
    /// Largest entry that it is asked to take.
    pub(crate) largest: usize,
    /// What a client goes by, where it speaks TLS.
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    child: Child,
}

impl Server {
    pub(crate) fn cpu(&self) -> f64 {
        measure::cpu(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // the ones that have children end them when they are asked to end
        let process = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM);
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ours, the floor, and whoever is installed.
pub(crate) fn all(folder: &Path) -> Vec<Server> {
    let mut all = vec![ours(&made(folder, "ours")), floor(&made(folder, "floor"))];
    let others: [fn(&Path) -> Option<Server>; 6] = [nginx, lighttpd, apache, seaweed, redis, memcached];
    for other in others {
        all.extend(other(folder));
    }
    all
}

/// Ours and nginx by TLS, under one certificate of P-256, and ours without it.
pub(crate) fn by_tls(folder: &Path) -> Vec<Server> {
    let made_up = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made_up.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let client = Arc::new(builder.unwrap().with_root_certificates(roots).with_no_client_auth());
    for name in ["ours", "nginx"] {
        let folder = made(folder, name);
        std::fs::write(folder.join("chain.pem"), made_up.cert.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), made_up.signing_key.serialize_pem()).unwrap();
    }
    let mut plain = ours(&made(folder, "plain"));
    plain.name = "ours without TLS";
    let mut all = vec![ours(&folder.join("ours")), plain];
    all.extend(nginx(folder));
    for server in all.iter_mut().filter(|server| server.name != "ours without TLS") {
        server.tls = Some(Arc::clone(&client));
    }
    all
}

fn made(folder: &Path, name: &str) -> PathBuf {
    let folder = folder.join(name);
    std::fs::create_dir_all(folder.join("files")).unwrap();
    folder
}

fn ours(folder: &Path) -> Server {
    let (child, address) = measure::server(folder);
    let authorization = format!("Authorization: Bearer {}\r\n", measure::token().expose());
    Server {
        name: "ours",
        speaks: Speaks::Http,
        address,
        path: "/bench/-/kv/",
        authorization,
        largest: 1 << 30,
        tls: None,
        child,
    }
}

fn floor(folder: &Path) -> Server {
    let (child, address) = measure::started("--floor", folder);
    Server {
        name: "the floor",
        speaks: Speaks::Http,
        address,
        path: "/",
        authorization: String::new(),
        largest: 1 << 30,
        tls: None,
        child,
    }
}

fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn program(name: &str) -> Option<PathBuf> {
    let clients = std::env::var("FORGEYARD_CLIENTS").unwrap_or_else(|_| "/opt/forgeyard/clients".to_owned());
    let folders = ["/usr/sbin", "/usr/bin"].map(PathBuf::from);
    let own = [PathBuf::from(clients).join("s3/bin")];
    folders.into_iter().chain(own).map(|folder| folder.join(name)).find(|path| path.exists())
}

fn started(name: &'static str, port: u16, path: &'static str, command: &mut Command) -> Option<Server> {
    // a group of its own: lighttpd passes a signal on to all of its group
    let command = command.process_group(0);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    for _ in 0..1500 {
        if TcpStream::connect(address).is_ok() {
            let (speaks, authorization) = (Speaks::Http, String::new());
            let (largest, tls) = (1 << 30, None);
            return Some(Server { name, speaks, address, path, authorization, largest, tls, child });
        }
        if matches!(child.try_wait(), Ok(Some(_))) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    eprintln!("  {name} did not start");
    let _ = child.kill();
    let _ = child.wait();
    None
}

fn nginx(folder: &Path) -> Option<Server> {
    let (program, folder, port) = (program("nginx")?, made(folder, "nginx"), port());
    let (at, user) = (folder.display(), if nix::unistd::geteuid().is_root() { "user root;" } else { "" });
    let secure = match folder.join("chain.pem").exists() {
        true => format!(" ssl; ssl_certificate {at}/chain.pem; ssl_certificate_key {at}/key.pem"),
        false => String::new(),
    };
    let config = format!(
        "{user} daemon off; worker_processes 2; pid {at}/pid; error_log {at}/error.log crit;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; client_body_temp_path {at}/body; keepalive_requests 100000000; sendfile on;\n\
         proxy_temp_path {at}/p; fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
         tcp_nopush on; client_max_body_size 0; client_body_buffer_size 256k; open_file_cache max=20000 inactive=300s;\n\
         server {{ listen 127.0.0.1:{port}{secure}; location / {{ root {at}/files; dav_methods PUT; }} }} }}\n"
    );
    std::fs::write(folder.join("nginx.conf"), config).unwrap();
    started("nginx", port, "/", Command::new(program).arg("-c").arg(folder.join("nginx.conf")))
}

fn lighttpd(folder: &Path) -> Option<Server> {
    let (program, folder, port) = (program("lighttpd")?, made(folder, "lighttpd"), port());
    let at = folder.display();
    let config = format!(
        "server.port = {port}\nserver.bind = \"127.0.0.1\"\nserver.document-root = \"{at}/files\"\n\
         server.modules = ( \"mod_webdav\" )\nserver.errorlog = \"{at}/error.log\"\nserver.max-worker = 2\n\
         server.max-keep-alive-requests = 60000\nserver.max-keep-alive-idle = 300\nserver.upload-dirs = ( \"{at}\" )\n\
         server.feature-flags = ( \"server.graceful-shutdown-timeout\" => 1 )\n\
         webdav.activate = \"enable\"\nwebdav.is-readonly = \"disable\"\n"
    );
    std::fs::write(folder.join("lighttpd.conf"), config).unwrap();
    started(
        "lighttpd",
        port,
        "/",
        Command::new(program).arg("-D").arg("-f").arg(folder.join("lighttpd.conf")),
    )
}

fn apache(folder: &Path) -> Option<Server> {
    let (program, folder, port) = (program("apache2")?, made(folder, "apache"), port());
    let (at, modules) = (folder.display(), "/usr/lib/apache2/modules");
    // it does not serve as root
    if nix::unistd::geteuid().is_root() {
        let user = nix::unistd::User::from_name("www-data").ok()??;
        for path in [folder.clone(), folder.join("files")] {
            nix::unistd::chown(&path, Some(user.uid), Some(user.gid)).ok()?;
        }
    }
    let config = format!(
        "ServerRoot {at}\nServerName a\nPidFile {at}/pid\nErrorLog {at}/error.log\nLogLevel crit\nListen 127.0.0.1:{port}\n\
         LoadModule mpm_event_module {modules}/mod_mpm_event.so\nLoadModule authz_core_module {modules}/mod_authz_core.so\n\
         LoadModule dav_module {modules}/mod_dav.so\nLoadModule dav_fs_module {modules}/mod_dav_fs.so\n\
         User www-data\nGroup www-data\nStartServers 2\nServerLimit 2\nThreadsPerChild 32\nMaxRequestWorkers 64\n\
         KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 300\nEnableSendfile On\n\
         DavLockDB {at}/locks\nDocumentRoot {at}/files\n<Directory {at}/files>\nDav On\nRequire all granted\n</Directory>\n"
    );
    std::fs::write(folder.join("apache.conf"), config).unwrap();
    let config = folder.join("apache.conf");
    started("Apache", port, "/", Command::new(program).arg("-D").arg("FOREGROUND").arg("-f").arg(config))
}

fn seaweed(folder: &Path) -> Option<Server> {
    let (program, folder) = (program("weed")?, made(folder, "seaweed"));
    // its second port of each service is ten thousand higher
    let ports: Vec<String> = (0..3).map(|_| (10_000 + port() % 20_000).to_string()).collect();
    let mut command = Command::new(program);
    command.arg("server").arg("-filer").arg(format!("-dir={}", folder.join("files").display()));
    command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=20", "-master.volumeSizeLimitMB=1024"]);
    command.arg(format!("-master.port={}", ports[0])).arg(format!("-volume.port={}", ports[1]));
    command.arg(format!("-filer.port={}", ports[2])).current_dir(&folder);
    started("SeaweedFS", ports[2].parse().ok()?, "/bench/", &mut command)
}

fn redis(folder: &Path) -> Option<Server> {
    let (program, folder, port) = (program("redis-server")?, made(folder, "redis"), port());
    let mut command = Command::new(program);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.current_dir(folder);
    let mut server = started("Redis", port, "", &mut command)?;
    server.speaks = Speaks::Redis;
    Some(server)
}

fn memcached(folder: &Path) -> Option<Server> {
    let (program, folder, port) = (program("memcached")?, made(folder, "memcached"), port());
    let mut command = Command::new(program);
    command.args([
        "-u",
        "root",
        "-l",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        "-U",
        "0",
        "-t",
        "2",
        "-m",
        "2048",
    ]);
    command.current_dir(folder);
    let mut server = started("memcached", port, "", &mut command)?;
    server.speaks = Speaks::Memcached;
    // larger ones need another setting, with which it keeps them in pieces
    server.largest = 512 << 10;
    Some(server)
}
