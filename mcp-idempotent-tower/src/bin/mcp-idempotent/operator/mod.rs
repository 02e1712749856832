//! For the person on call: looks at the records of a store, and changes them.

mod doctor;
mod id;
mod ls;
mod migrate;
mod print;
mod resolve;
mod secret;
mod show;
mod store;
mod sweep;

use std::{error::Error, io};

use clap::Subcommand;

/// Why a command could not do what it was asked.
pub(crate) type Failure = Box<dyn Error>;

/// How a command ended. Wrong options end with 2, clap's own code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    /// There is no such record.
    NotFound,
    /// The record is no longer as it was seen. Nothing was changed.
    Changed,
    /// The doctor found something wrong.
    Wrong,
}

impl Ended {
    /// The program's exit code.
    pub(crate) const fn code(self) -> i32 {
        match self {
            Self::Done => 0,
            Self::NotFound => 3,
            Self::Changed => 4,
            Self::Wrong => 5,
        }
    }
}

const CODES: &str = "\
Exit codes:
  0  done
  1  the store could not be reached, or refused
  2  wrong options
  3  there is no such record
  4  the record has changed since it was seen; nothing was changed: look again
  5  `doctor` found something wrong";

#[derive(Debug, Subcommand)]
pub(crate) enum Operator {
    /// Shows recorded calls, and settles those whose outcome is unknown
    #[command(subcommand, after_help = CODES)]
    Records(Records),
    /// Creates the tables of a store, or brings them up to date
    #[command(after_help = CODES)]
    Migrate(migrate::Migrate),
    /// Checks whether a store can keep its promises, and says what to do where it cannot
    #[command(after_help = CODES)]
    Doctor(doctor::Doctor),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Records {
    /// Lists recorded calls, oldest first
    #[command(after_help = ls::EXAMPLES)]
    Ls(ls::Ls),
    /// Shows one call: what is known of it, and what to do about it
    Show(show::Show),
    /// Says what became of a call whose outcome is unknown
    #[command(after_help = resolve::EXAMPLES)]
    Resolve(resolve::Resolve),
    /// Frees the key of a call, so that a retry runs: a repeat is acceptable
    Release(resolve::Release),
    /// Removes records that are past their retention
    Sweep(sweep::Sweep),
}

impl Operator {
    /// Runs a command.
    ///
    /// # Errors
    ///
    /// The store could not be reached, or refused.
    pub(crate) async fn run(self) -> Result<Ended, Failure> {
        let ended = self.execute().await;
        // `… | head` has seen enough.
        let is_read_no_more = |error: &Failure| {
            let error = error.downcast_ref::<io::Error>();
            error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        };
        match ended {
            Err(error) if is_read_no_more(&error) => Ok(Ended::Done),
            ended => ended,
        }
    }

    async fn execute(self) -> Result<Ended, Failure> {
        match self {
            Self::Records(Records::Ls(ls)) => ls.run().await,
            Self::Records(Records::Show(show)) => show.run().await,
            Self::Records(Records::Resolve(resolve)) => resolve.run().await,
            Self::Records(Records::Release(release)) => release.run().await,
            Self::Records(Records::Sweep(sweep)) => sweep.run().await,
            Self::Migrate(migrate) => migrate.run().await,
            Self::Doctor(doctor) => doctor.run().await,
        }
    }
}
