//! The client's side: standard input and output, read and written without handing over to another
//! thread.
//!
//! Their file descriptions belong to other processes too: the client, a shell, the server's
//! standard error after `2>&1`. So they are never made non-blocking themselves. A pipe is opened a
//! second time, and a socket is told on each call not to wait. Anything else, such as a terminal or
//! a file, blocks a thread of its own.

use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) type Input = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// Standard input.
pub(crate) fn input() -> Input {
    #[cfg(unix)]
    if let Some(input) = unix::input() {
        return input;
    }
    Box::new(tokio::io::stdin())
}

/// Standard output.
pub(crate) fn output() -> Output {
    #[cfg(unix)]
    if let Some(output) = unix::output() {
        return output;
    }
    Box::new(tokio::io::stdout())
}

#[cfg(unix)]
mod unix {
    use std::{
        fs::File,
        io,
        os::{
            fd::{AsFd, OwnedFd},
            unix::fs::FileTypeExt as _,
        },
        pin::Pin,
        task::{Context, Poll, ready},
    };

    use rustix::net::{RecvFlags, SendFlags, SocketType, recv, send, sockopt::socket_type};
    use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd};

    use super::{Input, Output};

    pub(super) fn input() -> Option<Input> {
        let stdin = io::stdin();
        match kind(&stdin)? {
            Kind::Pipe => pipe::input(),
            Kind::Socket(fd) => Socket::new(fd, Interest::READABLE).map(|it| Box::new(it) as _),
        }
    }

    pub(super) fn output() -> Option<Output> {
        let stdout = io::stdout();
        match kind(&stdout)? {
            Kind::Pipe => pipe::output(),
            Kind::Socket(fd) => Socket::new(fd, Interest::WRITABLE).map(|it| Box::new(it) as _),
        }
    }

    enum Kind {
        Pipe,
        Socket(OwnedFd),
    }

    fn kind(fd: &impl AsFd) -> Option<Kind> {
        let fd = fd.as_fd().try_clone_to_owned().ok()?;
        if matches!(socket_type(&fd), Ok(SocketType::STREAM)) {
            return Some(Kind::Socket(fd));
        }
        let file = File::from(fd).metadata().ok()?.file_type();
        file.is_fifo().then_some(Kind::Pipe)
    }

    /// Linux reopens a pipe by the name of its descriptor, and the flags of the new description are
    /// ours alone.
    #[cfg(target_os = "linux")]
    mod pipe {
        use tokio::net::unix::pipe::OpenOptions;

        use super::{Input, Output};

        pub(super) fn input() -> Option<Input> {
            let pipe = OpenOptions::new().open_receiver("/proc/self/fd/0").ok()?;
            Some(Box::new(pipe))
        }

        pub(super) fn output() -> Option<Output> {
            let pipe = OpenOptions::new().open_sender("/proc/self/fd/1").ok()?;
            Some(Box::new(pipe))
        }
    }

    /// Elsewhere such a name only duplicates the descriptor.
    #[cfg(not(target_os = "linux"))]
    mod pipe {
        use super::{Input, Output};

        pub(super) const fn input() -> Option<Input> {
            None
        }

        pub(super) const fn output() -> Option<Output> {
            None
        }
    }

    /// One direction of a stream socket, as some clients give their servers instead of a pipe.
    struct Socket(AsyncFd<OwnedFd>);

    impl Socket {
        #[expect(
            deprecated,
            reason = "its successor is unsafe for the sake of types whose descriptor may change; `OwnedFd` is none"
        )]
        fn new(fd: OwnedFd, interest: Interest) -> Option<Self> {
            AsyncFd::with_interest(fd, interest).ok().map(Self)
        }
    }

    impl AsyncRead for Socket {
        fn poll_read(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            loop {
                let mut ready = ready!(self.0.poll_read_ready(cx))?;
                let unfilled = into.initialize_unfilled();
                let read = ready.try_io(|fd| Ok(recv(fd, unfilled, RecvFlags::DONTWAIT)?.1));
                if let Ok(read) = read {
                    into.advance(read?);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    impl AsyncWrite for Socket {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            loop {
                let mut ready = ready!(self.0.poll_write_ready(cx))?;
                if let Ok(written) = ready.try_io(|fd| Ok(send(fd, bytes, SendFlags::DONTWAIT)?)) {
                    return Poll::Ready(written);
                }
            }
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        /// The descriptor and its connection stay open: others use them too.
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }
}
