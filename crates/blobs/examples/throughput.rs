//! Prints how fast a file goes into and out of a folder of blobs, against the floor: `cp` and `sha256sum` of the same
//! file in the same folder. `cargo run -p forgeyard-blobs --example throughput -- [MiB] [folder]`

use forgeyard_blobs::{BlobStore as _, DiskStore};
use forgeyard_model::Timestamp;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let mebibytes: usize = arguments.next().map_or(Ok(256), |text| text.parse())?;
    let base = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let folder = base.join(format!("forgeyard-throughput-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = measure(&folder, mebibytes).await;
    std::fs::remove_dir_all(&folder)?;
    result
}

async fn measure(folder: &std::path::Path, mebibytes: usize) -> Result<(), Failure> {
    let source = folder.join("source");
    let block: Vec<u8> = (0..1_048_576u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    std::fs::write(&source, block.repeat(mebibytes))?;
    Command::new("sync").arg(&source).status()?;
    let rate = |start: Instant| mebibytes as f64 / start.elapsed().as_secs_f64();

    let start = Instant::now();
    run(Command::new("cp").arg(&source).arg(folder.join("copy")))?;
    run(Command::new("sync").arg(folder.join("copy")))?;
    run(Command::new("sha256sum").arg(&source).stdout(std::process::Stdio::null()))?;
    let floor = rate(start);

    let store = DiskStore::open(folder.join("blobs"), Arc::new(|| Timestamp::from_micros(0))).await?;
    let start = Instant::now();
    let stored = store.put(None, Box::new(tokio::fs::File::open(&source).await?)).await?;
    let put = rate(start);
    let start = Instant::now();
    tokio::io::copy(&mut store.get(stored.digest, None).await?.reader, &mut tokio::io::sink()).await?;
    let get = rate(start);
    let start = Instant::now();
    store.verify(stored.digest).await?;
    let verify = rate(start);

    println!("{mebibytes} MiB in {}", folder.display());
    println!("cp + sync + sha256sum  {floor:8.0} MiB/s");
    println!("put                    {put:8.0} MiB/s  ({:.2} x)", put / floor);
    println!("get                    {get:8.0} MiB/s");
    println!("verify                 {verify:8.0} MiB/s");
    Ok(())
}

fn run(command: &mut Command) -> Result<(), Failure> {
    if command.status()?.success() { Ok(()) } else { Err(format!("{command:?} failed").into()) }
}
