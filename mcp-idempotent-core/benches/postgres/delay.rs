//! A network between client and server: a relay that holds every message back, in both directions,
//! and counts turns.
//!
//! Threads and not tasks, because the runtime's timers tick once a millisecond. A thread sleeps
//! until shortly before the time is up and spins for the rest.

use std::{
    hint,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// How early a thread wakes up: what a sleep is longer than asked for, mostly.
const SPIN: Duration = Duration::from_micros(100);

pub(crate) struct Delay {
    port: u16,
    turns: Arc<AtomicU64>,
}

impl Delay {
    /// Starts a relay to a port of this machine. It ends with the process.
    pub(crate) fn start(to: u16, one_way: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("it listens").port();
        let turns = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&turns);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else {
                    continue;
                };
                let answered = Arc::new(AtomicBool::new(false));
                let turns = Arc::clone(&counted);
                let asked = Arc::clone(&answered);
                one_direction(&client, &server, one_way, move || {
                    if asked.swap(false, Ordering::SeqCst) {
                        turns.fetch_add(1, Ordering::SeqCst);
                    }
                });
                one_direction(&server, &client, one_way, move || {
                    answered.store(true, Ordering::SeqCst);
                });
            }
        });
        Self { port, turns }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// How often a client has spoken after the server had: round trips, all connections together.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    /// The one-way delay that a relay like this adds in truth: the median over exchanges of a few
    /// bytes with an echo, with it and without.
    pub(crate) fn measure(one_way: Duration) -> Duration {
        let echo = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = echo.local_addr().expect("it listens").port();
        thread::spawn(move || {
            for stream in echo.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let mut byte = [0];
                    let mut stream = &stream;
                    drop(stream.set_nodelay(true));
                    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
                });
            }
        });
        let relayed = round_trip(Self::start(port, one_way).port());
        relayed.saturating_sub(round_trip(port)) / 2
    }
}

fn round_trip(port: u16) -> Duration {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("an echo");
    stream.set_nodelay(true).expect("a socket");
    let mut times: Vec<_> = (0..501)
        .map(|_| {
            let start = Instant::now();
            stream.write_all(&[1]).expect("an echo");
            stream.read_exact(&mut [0]).expect("an echo");
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn one_direction(
    from: &TcpStream,
    to: &TcpStream,
    one_way: Duration,
    mut on_message: impl FnMut() + Send + 'static,
) {
    from.set_nodelay(true).expect("a socket");
    let mut from = from.try_clone().expect("a socket");
    let mut to = to.try_clone().expect("a socket");
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut chunk = vec![0; 64 * 1024];
        while let Ok(size @ 1..) = from.read(&mut chunk) {
            let due = Instant::now() + one_way;
            on_message();
            if sender.send((due, chunk[..size].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in receiver {
            wait_until(due);
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        drop(to.shutdown(std::net::Shutdown::Both));
    });
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
