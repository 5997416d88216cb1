//! `portcullis ctl`: the client of a run's control socket.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;

#[cfg(not(all(target_os = "linux", feature = "live")))]
use super::failure::Failure;
use super::filter::FilterArgs;

/// Control a running instance: reload its filter, read or write maps, print statistics
///
/// The instance must have been started with `--control PATH`. docs/guide/operating.md documents the
/// protocol.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Control socket of the running instance (`run --control`)
    #[arg(long, value_name = "PATH")]
    control: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Replace the filter between two batches, without losing a packet
    ///
    /// The running instance reads and compiles the file. If that fails, the errors are printed here
    /// and nothing changes. Maps whose name, kind, key, value and size are unchanged keep their
    /// entries; others start empty.
    Reload {
        #[command(flatten)]
        filter: FilterArgs,
    },
    /// Read or change a map of the running filter
    Map {
        #[command(subcommand)]
        command: MapCommand,
    },
    /// Print statistics
    Stats {
        /// Print one line of JSON instead of a table
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Subcommand)]
enum MapCommand {
    /// Print all entries, sorted by key, or one entry
    Get {
        /// The map
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// The key of one entry, as in a row of CSV: `10.0.0.19`, `10.0.0.0/8`, `10.0.0.19,80`
        #[arg(allow_hyphen_values = true)]
        key: Option<String>,
        /// Print JSON instead of CSV
        #[arg(long)]
        json: bool,
    },
    /// Set an entry's value, creating the entry if needed
    Set {
        /// The map
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// The entry's key, as in a row of CSV
        #[arg(allow_hyphen_values = true)]
        key: String,
        /// Value of the entry, as in a CSV row, in one argument or several; none for a map that
        /// only has keys
        #[arg(allow_hyphen_values = true)]
        value: Vec<String>,
    },
    /// Delete an entry; entries of array maps become zero
    Del {
        /// The map
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// The entry's key, as in a row of CSV
        #[arg(allow_hyphen_values = true)]
        key: String,
    },
}

#[cfg(all(target_os = "linux", feature = "live"))]
pub use client::run;

#[cfg(not(all(target_os = "linux", feature = "live")))]
pub fn run(args: &Args) -> Result<(), Failure> {
    let _ = args;
    Err(Failure::Usage(if cfg!(target_os = "linux") {
        "this program was built without live packets; build it with `--features af-xdp`, `--features nfqueue` or `--features dpdk`".into()
    } else {
        "live traffic and `portcullis ctl` are supported on Linux only".into()
    }))
}

#[cfg(all(target_os = "linux", feature = "live"))]
mod client {
    use std::io::{self, ErrorKind, Read, Write};
    use std::os::unix::fs::FileTypeExt;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::time::Duration;

    use portcullis::control::{self, Answer, Refusal, ReloadReport, Request, RowFormat};
    use portcullis::pipeline::live::RunSummary;
    use portcullis::reason;

    use super::{Args, Command, MapCommand};
    use crate::failure::{FAILED, Failure, USAGE};
    use crate::out;
    use crate::run::live::report::{self, ExtraReport};

    /// Time limit for an answer. A driver may compile for seconds; batches take less.
    const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

    /// Sends the request and prints the answer.
    pub fn run(args: &Args) -> Result<(), Failure> {
        match ask(&args.control, &request(&args.command)?)? {
            Answer::Done => Ok(()),
            Answer::Text(text) => out::print(text),
            Answer::Reloaded(reloaded) => out::print(out::printable(&describe_reload(&reloaded))),
            Answer::Stats(stats) => match args.command {
                Command::Stats { json: true } => out::print(format!("{}\n", stats.get())),
                _ => {
                    let summary: RunSummary = serde_json::from_str(stats.get())
                        .map_err(|error| Failure::Error(format!("cannot decode the statistics of the run: {error}")))?;
                    // Instances of other releases may not send these.
                    let extra: ExtraReport = serde_json::from_str(stats.get()).unwrap_or_default();
                    out::print(report::table(&summary, "so far", None, &extra))
                }
            },
            Answer::Refused(Refusal { error, is_rendered, is_usage }) => {
                if is_rendered {
                    out::note(&out::printable(error.trim_end()));
                } else {
                    out::error(&error);
                }
                Err(Failure::Silent(if is_usage { USAGE } else { FAILED }))
            }
        }
    }

    fn request(command: &Command) -> Result<Request, Failure> {
        let cells = |text: &str| -> Vec<String> { text.split(',').map(|cell| cell.trim().to_owned()).collect() };
        Ok(match command {
            Command::Stats { .. } => Request::Stats,
            Command::Reload { filter } => Request::Reload(filter.reload()?),
            Command::Map { command } => match command {
                MapCommand::Get { name, key, json } => Request::MapGet {
                    map: name.clone(),
                    key: key.as_deref().map(cells),
                    format: if *json { RowFormat::Json } else { RowFormat::Csv },
                },
                MapCommand::Set { name, key, value } => {
                    let value = value.iter().flat_map(|text| cells(text)).collect();
                    Request::MapSet { map: name.clone(), key: cells(key), value }
                }
                MapCommand::Del { name, key } => Request::MapDel { map: name.clone(), key: cells(key) },
            },
        })
    }

    /// Sends a request and waits for its answer.
    fn ask(path: &Path, request: &Request) -> Result<Answer, Failure> {
        let wrong = |what: &str| Failure::Error(format!("--control {}: {what}", path.display()));
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                wrong("the run has not answered for a minute; it may be stopped")
            }
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                wrong("the run closed the connection without an answer: it has ended or is ending")
            }
            _ => wrong(&reason(&error)),
        };
        let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => wrong(&format!("{error}; give the path that the run was started with")),
            ErrorKind::PermissionDenied => {
                wrong(&format!("{error}; only root and the user who started the run may use it"))
            }
            ErrorKind::ConnectionRefused => {
                let is_socket = path.metadata().is_ok_and(|it| it.file_type().is_socket());
                wrong(&format!("{error}; {}", if is_socket { "the run has ended" } else { "it is not a socket" }))
            }
            _ => wrong(&reason(&error)),
        })?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
        let line = control::encode(request);
        if line.len() > control::MAX_REQUEST_BYTES {
            return Err(Failure::Usage(format!("the request has more than {} bytes", control::MAX_REQUEST_BYTES)));
        }
        stream.write_all(&line).map_err(failed)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map_err(failed)?;
        if answer.pop() != Some(b'\n') {
            return Err(failed(ErrorKind::ConnectionReset.into()));
        }
        control::decode_answer(&answer).map_err(|refused| wrong(&refused.error))
    }

    /// Describes a reload and what became of the maps.
    fn describe_reload(reloaded: &ReloadReport) -> String {
        let mut text = format!("{} has replaced the filter\n", reloaded.filter);
        for (names, what) in [
            (&reloaded.carried, "maps carried over"),
            (&reloaded.empty, "maps that start empty"),
            (&reloaded.gone, "maps of the old filter that were dropped"),
        ] {
            if !names.is_empty() {
                text += &format!("{what}: {}\n", names.join(", "));
            }
        }
        text
    }
}
