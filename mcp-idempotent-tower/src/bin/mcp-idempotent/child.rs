//! The server as a child process, which is treated as if the proxy were not there.

use std::{
    ffi::OsString,
    io,
    pin::Pin,
    process::{ExitStatus, Stdio},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::oneshot,
    task::JoinHandle,
    time::sleep,
};

/// How long a server's output is still read after it has ended: a process that it left behind may
/// keep it open.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A running server.
pub(crate) struct Server {
    pub(crate) input: ChildStdin,
    pub(crate) output: Output,
    /// How it ended.
    pub(crate) ended: JoinHandle<io::Result<ExitStatus>>,
}

/// Starts a server. Its standard error is the proxy's, and signals that the proxy gets are passed
/// on to it.
///
/// # Errors
///
/// It cannot be started.
pub(crate) fn start(command: &[OsString]) -> Result<Server, String> {
    let (program, arguments) = command.split_first().ok_or("no command")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    // Ctrl-C in a terminal reaches the whole group, and the server would get it twice.
    #[cfg(unix)]
    command.process_group(0);
    let mut child = command
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (input, output) = input.zip(output).ok_or("the server has no pipes")?;
    let (silent, ended) = oneshot::channel();
    Ok(Server {
        input,
        output: Output { output, ended },
        ended: tokio::spawn(async move {
            let status = wait(&mut child).await;
            sleep(LAST_WORDS).await;
            let _ = silent.send(());
            status
        }),
    })
}

/// What a server writes. It ends with the pipe, or soon after the server.
pub(crate) struct Output {
    output: ChildStdout,
    ended: oneshot::Receiver<()>,
}

impl AsyncRead for Output {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.output).poll_read(cx, into) {
            return Poll::Ready(read);
        }
        let _ = ready!(Pin::new(&mut self.ended).poll(cx));
        Poll::Ready(Ok(()))
    }
}

/// The code with which the proxy ends, as a shell would report it.
pub(crate) fn code(status: ExitStatus) -> i32 {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    let signal = None;
    status
        .code()
        .or_else(|| signal.map(|signal| 128 + signal))
        .unwrap_or(1)
}

#[cfg(not(unix))]
async fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    child.wait().await
}

#[cfg(unix)]
async fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    use rustix::process::{Pid, Signal, kill_process};
    use tokio::signal::unix::{SignalKind, signal};

    let pid = child
        .id()
        .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let mut hangup = signal(SignalKind::hangup())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut user1 = signal(SignalKind::user_defined1())?;
    let mut user2 = signal(SignalKind::user_defined2())?;
    loop {
        let passed = tokio::select! {
            status = child.wait() => return status,
            _ = hangup.recv() => Signal::HUP,
            _ = interrupt.recv() => Signal::INT,
            _ = quit.recv() => Signal::QUIT,
            _ = terminate.recv() => Signal::TERM,
            _ = user1.recv() => Signal::USR1,
            _ = user2.recv() => Signal::USR2,
        };
        if let Some(pid) = pid {
            // It may have ended just now.
            let _ = kill_process(pid, passed);
        }
    }
}
