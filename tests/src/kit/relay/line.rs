//! The way to one side, which may take its time.

use std::{
    hint,
    io::{self, Write as _},
    net::{Shutdown, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// How early a thread wakes up: what a sleep is longer than asked for, mostly. It spins for the rest.
const SPIN: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(super) struct Line {
    to: TcpStream,
    late: Option<Late>,
}

#[derive(Debug)]
struct Late {
    by: Duration,
    /// Nothing is the end.
    queue: mpsc::Sender<(Instant, Option<Vec<u8>>)>,
}

impl Line {
    pub(super) fn to(stream: &TcpStream, late_by: Duration) -> Self {
        stream.set_nodelay(true).unwrap();
        let to = stream.try_clone().unwrap();
        let late = (!late_by.is_zero()).then(|| {
            let (queue, due) = mpsc::channel();
            let to = stream.try_clone().unwrap();
            thread::spawn(move || deliver(&to, &due));
            Late { by: late_by, queue }
        });
        Self { to, late }
    }

    pub(super) fn send(&self, message: Vec<u8>) -> io::Result<()> {
        match &self.late {
            None => (&self.to).write_all(&message),
            Some(late) => late.push(Some(message)),
        }
    }

    /// Nothing will follow.
    pub(super) fn close(&self) {
        let closed = match &self.late {
            None => self.to.shutdown(Shutdown::Write),
            Some(late) => late.push(None),
        };
        // The side may have ended by itself.
        drop(closed);
    }
}

impl Late {
    fn push(&self, message: Option<Vec<u8>>) -> io::Result<()> {
        let due = Instant::now() + self.by;
        self.queue
            .send((due, message))
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

fn deliver(mut to: &TcpStream, messages: &mpsc::Receiver<(Instant, Option<Vec<u8>>)>) {
    for (due, message) in messages {
        wait_until(due);
        let Some(message) = message else { break };
        if to.write_all(&message).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Write));
}

fn wait_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if left > SPIN {
        thread::sleep(left - SPIN);
    }
    while Instant::now() < due {
        hint::spin_loop();
    }
}
