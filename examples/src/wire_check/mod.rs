//! An executable check of docs/wire.md. It knows nothing of the server but what goes over the wire: a second
//! execution shows in a result that differs from the first one.

mod connection;
mod heard;
mod rules;
mod subject;

use lexopt::{
    Arg::{Long, Short, Value},
    ValueExt as _,
};

use self::{connection::Target, rules::Verdict, subject::Subject};
use crate::command_line::{Stop, print};

/// What `--help` prints.
pub const USAGE: &str = "\
Checks the rules of docs/wire.md on a server, and reports rule by rule. It calls a tool of the server
about forty times, so use one whose effects do not matter.

Usage: cargo run --example wire_check -- [OPTIONS] URL
       cargo run --example wire_check -- [OPTIONS] -- COMMAND [ARGS]...

Options:
  --tool NAME         the tool to call [default: the first whose calls are protected]. Two executions
                      must give different results, or nothing can be told
  --arguments JSON    its arguments [default: made from its input schema]
  --header NAME=TEXT  with a URL: a header of each request, for example authorization=Bearer s3cret
  -h, --help          print this

It exits with 1 if a rule is broken.
";

/// Checks, and prints the report.
///
/// # Errors
///
/// The arguments make no sense, the server cannot be reached, or a rule is broken.
pub async fn main(mut arguments: lexopt::Parser) -> Result<(), Stop> {
    let mut tool = None;
    let mut given = None;
    let mut headers = Vec::new();
    let mut target = Vec::new();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("tool") => tool = Some(arguments.value()?.string()?),
            Long("arguments") => {
                let text = arguments.value()?.string()?;
                let json = serde_json::from_str(&text);
                given =
                    Some(json.map_err(|_| Stop::Usage("--arguments is no JSON object".into()))?);
            }
            Long("header") => {
                let text = arguments.value()?.string()?;
                let (name, value) = text
                    .split_once('=')
                    .ok_or_else(|| Stop::Usage("--header is not NAME=TEXT".to_owned()))?;
                headers.push((name.to_owned(), value.to_owned()));
            }
            Long("help") | Short('h') => return Err(Stop::Help),
            Value(first) => {
                target.push(first.string()?);
                for more in arguments.raw_args()? {
                    target.push(more.string()?);
                }
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let target = Target::new(target, headers).map_err(Stop::Usage)?;
    let mut connection = target.connect().await?;
    let subject = Subject::find(&mut connection, tool.as_deref(), given).await?;
    print(format_args!(
        "tool {}, arguments {}\n",
        subject.tool,
        subject.arguments()
    ));
    let mut broken = 0;
    for (title, verdict) in rules::check(&target, connection, &subject).await? {
        match verdict {
            Verdict::Kept => print(format_args!("kept    {title}\n")),
            Verdict::NotAsked(why) => print(format_args!("–       {title} ({why})\n")),
            Verdict::Broken(why) => {
                broken += 1;
                print(format_args!("BROKEN  {title}: {why}\n"));
            }
        }
    }
    if broken > 0 {
        return Err(anyhow::anyhow!("{broken} rules are broken").into());
    }
    print(format_args!("no rule is broken\n"));
    Ok(())
}
