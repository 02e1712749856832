//! A server over stdio: each connection is a process.

use std::{ffi::OsString, process::Stdio, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use mcp_idempotent_tower::testing::{Caller, Door, Lines, Wire};
use serde_json::Value;
use tokio::{
    process::{Child, Command},
    sync::Mutex,
    time::timeout,
};

/// How long a server may go on whose client has left.
const LEAVE: Duration = Duration::from_secs(30);

/// How to start it.
pub(super) struct Process(Vec<OsString>);

impl Process {
    pub(super) fn new(command: &[OsString]) -> Self {
        Self(command.to_vec())
    }

    fn start(&self) -> Result<Running, String> {
        let (program, arguments) = self.0.split_first().ok_or("there is no command")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        // What it starts is killed with it.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = input.zip(output).ok_or("the server has no pipes")?;
        Ok(Running {
            lines: Lines::new(output, input),
            child: Arc::new(Mutex::new(child)),
        })
    }
}

impl Door for Process {
    fn open(&self, _: Caller) -> BoxFuture<'_, Result<Arc<dyn Wire>, String>> {
        Box::pin(async { Ok(Arc::new(self.start()?) as _) })
    }

    fn has_another_caller(&self) -> bool {
        false
    }

    fn can_kill(&self) -> bool {
        true
    }
}

struct Running {
    lines: Lines,
    child: Arc<Mutex<Child>>,
}

impl Wire for Running {
    fn send(&self, message: Value) -> BoxFuture<'static, Result<Option<Value>, String>> {
        self.lines.send(message)
    }

    fn kill(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let mut child = self.child.lock().await;
            kill(&mut child).await;
        })
    }
}

impl Drop for Running {
    /// Its pipes close with it, so the server sees that its client has left, and may end what it does.
    fn drop(&mut self) {
        let child = Arc::clone(&self.child);
        tokio::spawn(async move {
            let mut child = child.lock().await;
            if timeout(LEAVE, child.wait()).await.is_err() {
                kill(&mut child).await;
            }
        });
    }
}

async fn kill(child: &mut Child) {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process_group};

        let pid = child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // It may have ended just now.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
    let _ = child.kill().await;
}
