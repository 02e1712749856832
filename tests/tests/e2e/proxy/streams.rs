//! What a client gives the program as standard input and output.

use std::{
    fs::{self, File},
    io::{Read, Write, pipe},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command},
    thread,
};

use super::program::proxy;

/// Two lines, of which the first is longer than any buffer on the way.
fn lines() -> Vec<u8> {
    [
        &b"{\"method\":\""[..],
        &vec![b'x'; 20 * 1024 * 1024],
        b"\"}\nlast\n",
    ]
    .concat()
}

/// The proxy in front of a server that says again what it hears.
fn echo(input: impl Into<OwnedFd>, output: impl Into<OwnedFd>) -> Child {
    Command::new(proxy())
        .args(["--", "cat"])
        .stdin(input.into())
        .stdout(output.into())
        .spawn()
        .unwrap()
}

/// What comes back, after the input has ended.
fn exchange(child: &mut Child, input: impl Into<OwnedFd>, mut output: impl Read) -> Vec<u8> {
    let mut input = File::from(input.into());
    let writing = thread::spawn(move || input.write_all(&lines()).unwrap());
    let mut back = Vec::new();
    output.read_to_end(&mut back).unwrap();
    writing.join().unwrap();
    assert!(child.wait().unwrap().success());
    back
}

/// No process that shares a stream with the proxy finds it changed.
fn is_left_as_it_was(child: &Child) {
    const NON_BLOCKING: u32 = 0o4000;
    for descriptor in [0, 1] {
        let info = format!("/proc/{}/fdinfo/{descriptor}", child.id());
        let info = fs::read_to_string(info).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = u32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
        assert_eq!(flags & NON_BLOCKING, 0, "descriptor {descriptor}");
    }
}

/// Every byte passes, and the streams keep their flags.
fn passes(
    input: impl Into<OwnedFd>,
    output: impl Into<OwnedFd>,
    mut say: impl Write + Into<OwnedFd>,
    mut hear: impl Read,
) {
    let mut child = echo(input, output);
    say.write_all(b"first\n").unwrap();
    let mut first = [0; 6];
    hear.read_exact(&mut first).unwrap();
    is_left_as_it_was(&child);
    assert!(exchange(&mut child, say, hear) == lines());
}

#[test]
fn every_byte_passes_through_pipes_and_they_keep_their_flags() {
    let (input, say) = pipe().unwrap();
    let (hear, output) = pipe().unwrap();
    passes(input, output, say, hear);
}

/// Clients that are written in JavaScript give their servers sockets.
#[test]
fn every_byte_passes_through_sockets_and_they_keep_their_flags() {
    let (input, say) = UnixStream::pair().unwrap();
    let (hear, output) = UnixStream::pair().unwrap();
    passes(input, output, say, hear);
}

#[test]
fn every_byte_passes_from_a_file_to_a_file() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    fs::write(&from, lines()).unwrap();
    let input = File::open(from).unwrap();
    let mut child = echo(input, File::create(&to).unwrap());
    assert!(child.wait().unwrap().success());
    assert!(fs::read(to).unwrap() == lines());
}

#[test]
fn a_client_that_hangs_up_ends_the_server() {
    let (input, say) = UnixStream::pair().unwrap();
    let mut child = echo(input.try_clone().unwrap(), input);
    drop(say);
    assert!(child.wait().unwrap().success());
}
