//! How late a relay is in truth.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use sqlx::postgres::PgConnectOptions;

use crate::kit::relay::Relay;

/// A message of no text, as a client's first one is.
const FIRST: &[u8] = b"\0\0\0\x04";
/// A query of no text.
const QUERY: &[u8] = b"Q\0\0\0\x04";

/// The median over exchanges of a few bytes with an echo, with a relay and without.
pub(crate) fn measure(one_way: Duration) -> Duration {
    let echo = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = echo.local_addr().expect("it listens").port();
    thread::spawn(move || {
        for stream in echo.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut chunk = [0; 64];
                let mut stream = &stream;
                drop(stream.set_nodelay(true));
                while let Ok(size @ 1..) = stream.read(&mut chunk)
                    && stream.write_all(&chunk[..size]).is_ok()
                {}
            });
        }
    });
    let target = PgConnectOptions::new().host("127.0.0.1").port(port);
    let relayed = round_trip(Relay::start_late(&target, one_way).port());
    relayed.saturating_sub(round_trip(port)) / 2
}

fn round_trip(port: u16) -> Duration {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("an echo");
    stream.set_nodelay(true).expect("a socket");
    exchange(&mut stream, FIRST);
    let mut times: Vec<_> = (0..501)
        .map(|_| {
            let start = Instant::now();
            exchange(&mut stream, QUERY);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn exchange(stream: &mut TcpStream, message: &[u8]) {
    stream.write_all(message).expect("an echo");
    let mut answer = vec![0; message.len()];
    stream.read_exact(&mut answer).expect("an echo");
}
