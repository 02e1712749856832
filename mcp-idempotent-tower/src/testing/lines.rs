//! A connection whose messages are lines of JSON, as over stdio.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::door::Wire;

/// A [`Wire`] whose messages are lines of JSON, over any two pipes.
pub struct Lines {
    output: mpsc::UnboundedSender<String>,
    waiting: Arc<Waiting>,
    tasks: [JoinHandle<()>; 2],
}

/// Who waits for the answer to which request. `None` once no answer can come any more.
type Waiting = Mutex<Option<HashMap<String, oneshot::Sender<Value>>>>;

impl Lines {
    /// Reads the server's messages from `reader`, and writes the client's to `writer`. Call it inside a
    /// tokio runtime.
    pub fn new<R, W>(reader: R, writer: W) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let (output, lines) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let read = read(reader, Arc::clone(&waiting), output.clone());
        Self {
            output,
            waiting,
            tasks: [tokio::spawn(read), tokio::spawn(write(writer, lines))],
        }
    }
}

impl Wire for Lines {
    fn send(&self, message: Value) -> BoxFuture<'static, Result<Option<Value>, String>> {
        const CLOSED: &str = "the connection closed";
        let id = message.get("id").map(Value::to_string);
        let answer = id.map(|id| {
            let (sender, answer) = oneshot::channel();
            if let Some(waiting) = &mut *lock(&self.waiting) {
                waiting.insert(id, sender);
            }
            answer
        });
        let sent = self.output.send(format!("{message}\n"));
        Box::pin(async move {
            sent.map_err(|_| CLOSED)?;
            match answer {
                Some(answer) => answer.await.map(Some).map_err(|_| CLOSED.to_owned()),
                None => Ok(None),
            }
        })
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

async fn write(mut writer: impl AsyncWrite + Unpin, mut lines: mpsc::UnboundedReceiver<String>) {
    while let Some(line) = lines.recv().await {
        if writer.write_all(line.as_bytes()).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
}

async fn read(
    reader: impl AsyncRead + Unpin,
    waiting: Arc<Waiting>,
    output: mpsc::UnboundedSender<String>,
) {
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        let Some(id) = message.get("id") else {
            continue;
        };
        if let Some(method) = message.get("method") {
            // A question of the server's. Nobody is here to answer it, but it must not wait for ever.
            let answer = if method == "ping" {
                json!({ "jsonrpc": "2.0", "id": id, "result": {} })
            } else {
                let error =
                    json!({ "code": -32601, "message": "this client answers no questions" });
                json!({ "jsonrpc": "2.0", "id": id, "error": error })
            };
            drop(output.send(format!("{answer}\n")));
            continue;
        }
        let asker = lock(&waiting)
            .as_mut()
            .and_then(|it| it.remove(&id.to_string()));
        if let Some(asker) = asker {
            drop(asker.send(message));
        }
    }
    // Callers that still wait learn that no answer comes.
    drop(lock(&waiting).take());
}

fn lock(
    waiting: &Waiting,
) -> std::sync::MutexGuard<'_, Option<HashMap<String, oneshot::Sender<Value>>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
