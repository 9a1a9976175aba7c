//! `phalanx serve`: a rank that has the tables of the workers. It runs no line of their program: rank 0 tells it which tables to open.

use phalanx_net::{World, discover::DiscoverError, task::TaskSpec};
use phalanx_ps::{PsError, ServerCall, Serving};
use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often it looks for the next call.
const SLICE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(
        "this process is not a server of a world: start it with `phalanx run -np N --servers M --serve -- COMMAND`, or set PHALANX_ROLE=server \
         beside PHALANX_RANK, PHALANX_SIZE, PHALANX_SERVERS and PHALANX_RENDEZVOUS"
    )]
    NoServer,
    #[error(transparent)]
    Environment(#[from] DiscoverError),
    #[error(transparent)]
    Tables(#[from] PsError),
}

/// Serves until all workers have left.
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("phalanx serve: {why}");
            ExitCode::from(if matches!(why, ServeError::Tables(_)) { 1 } else { 2 })
        }
    }
}

fn serve() -> Result<(), ServeError> {
    let task = TaskSpec::from_vars(&|name| std::env::var(name).ok())?;
    let task = task.filter(TaskSpec::is_ps).ok_or(ServeError::NoServer)?;
    let world = World::from_env_as(Some(&task), phalanx_collective::BUILD).map_err(PsError::from)?;
    let mut serving = Serving::new(Arc::new(world))?;
    loop {
        let called = match serving.poll(Instant::now() + SLICE) {
            Ok(Some(ServerCall::Open(offer))) => serving.open(&offer),
            Ok(Some(ServerCall::End)) => return Ok(serving.end()?),
            Ok(None) => Ok(()),
            Err(why) => Err(why),
        };
        if let Err(why) = called {
            serving.abandon();
            return Err(why.into());
        }
    }
}
