//! `forebay doctor`: what stands between this machine and full speed.
//!
//! | module | holds | must not hold |
//! | --- | --- | --- |
//! | `facts` | what the machine says of itself: files below a root, and a few system calls | judgement |
//! | `server` | what connecting to a server tells | judgement |
//! | `speed` | what reading for two seconds tells | judgement |
//! | `checks` | what all that means (pure): one function for each line of the report | I/O |
//! | `finding`, `report` | a line, and all of them for people and for machines | |

mod args;
mod checks;
mod facts;
mod finding;
mod report;
mod server;
mod speed;

use std::path::Path;

use forebay_client::{Error, Fabric, ServerUrl};

pub use args::Doctor;
use checks::CHECKS;
use facts::{Facts, Probes};
use finding::{Finding, Level};
use speed::Speed;

use crate::args::FabricArg;
use crate::connect::{self, Place, Way};
use crate::failure::{Failure, UNWELL};
use crate::output;

pub fn run(args: &Doctor) -> Result<(), Failure> {
    let folders = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&folders).collect();
    let mut facts = Facts::gather(Path::new("/"), &folders, args.memory, Probes::take());
    facts.open_devices();
    match args.url.as_deref().map(Place::parse).transpose()? {
        None => {}
        Some(Place::Server(url)) => runtime()?.block_on(visit(&mut facts, &url, args))?,
        Some(Place::Here(path)) => facts.speeds.push(here(&path, args)?),
    }
    let findings: Vec<Finding> = CHECKS.iter().filter_map(|check| check(&facts)).collect();
    let wrong = findings.iter().filter(|finding| finding.level == Level::Wrong).count();
    if args.json {
        output::json(&report::json(&facts, &findings))?;
    } else {
        output::text(&report::text(&findings))?;
    }
    match wrong {
        0 => Ok(()),
        1 => Err(Failure::new(UNWELL, "one thing is wrong")),
        wrong => Err(Failure::new(UNWELL, format!("{wrong} things are wrong"))),
    }
}

/// With a worker of its own, so that a connection is kept alive while something else is waited for.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// Connects to a server and reads from it, over every fabric that there may be.
async fn visit(facts: &mut Facts, url: &ServerUrl, args: &Doctor) -> Result<(), Failure> {
    if args.local.index.is_some() {
        return Err(Failure::usage("--index is for shards: a server has its own"));
    }
    let trust = args.trust.trust()?;
    let (mut server, connection) =
        server::reach(url, &trust, args.memory).await.map_err(|error| Failure::from(Error::from(error)))?;
    if let Some(dataset) = server.dataset() {
        let mut fabrics = vec![Fabric::H3];
        if checks::rdma_usable(facts) {
            fabrics.push(Fabric::Rdma);
        }
        for fabric in fabrics {
            facts.speeds.push(speed::of_server(url, dataset, &trust, args.memory, fabric).await);
        }
    }
    if let (Some(connection), Ok(reached)) = (connection, &mut server.reached) {
        // Meanwhile larger packets were tried.
        reached.payload = connection.mtu();
        connection.close();
        connection.closed().await;
    }
    facts.server = Some(server);
    Ok(())
}

/// Reads shards without a server.
fn here(path: &str, args: &Doctor) -> Result<Speed, Failure> {
    let way = Way { trust: &args.trust, fabric: FabricArg::Local };
    let dataset = connect::dataset(path, way, (&args.local, Some(&args.disk)), Some(args.memory))?;
    let name = dataset.description().name.clone();
    let rate = runtime()?.block_on(speed::of(dataset.inner()));
    Ok(Speed { fabric: "local", dataset: name, rate })
}
