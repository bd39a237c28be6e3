//! Non-blocking connection to a target, with or without TLS.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, StreamOwned};
use socket2::{Domain, Protocol, Socket as RawSocket, Type};

use crate::error::LoadError;
use crate::target::Target;

/// Time limit of the first connection to a target.
const CONNECT: Duration = Duration::from_secs(5);

/// Connection, or one that is being opened.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    /// Opens a connection and waits for it, and for the handshake of TLS.
    pub(crate) fn connect(
        target: &Target,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self, LoadError> {
        let address = target.address;
        let refused = |error: io::Error| LoadError::Connect {
            address,
            reason: error.to_string(),
        };
        let stream = TcpStream::connect_timeout(&address, CONNECT).map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let mut socket = Self::wrap(stream, target, tls)?;
        if let Self::Tls(stream) = &mut socket {
            let failed = |reason: String| LoadError::Tls { address, reason };
            stream
                .sock
                .set_read_timeout(Some(CONNECT))
                .map_err(refused)?;
            while stream.conn.is_handshaking() {
                let StreamOwned { conn, sock } = stream.as_mut();
                conn.complete_io(sock)
                    .map_err(|error| failed(error.to_string()))?;
            }
        }
        socket.stream().set_nonblocking(true).map_err(refused)?;
        Ok(socket)
    }

    /// Begins to open a connection, and does not wait.
    pub(crate) fn start(
        target: &Target,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self, LoadError> {
        let refused = |error: io::Error| LoadError::Connect {
            address: target.address,
            reason: error.to_string(),
        };
        let domain = Domain::for_address(target.address);
        let socket = RawSocket::new(domain, Type::STREAM, Some(Protocol::TCP)).map_err(refused)?;
        socket.set_nonblocking(true).map_err(refused)?;
        socket.set_tcp_nodelay(true).map_err(refused)?;
        match socket.connect(&target.address.into()) {
            Ok(()) => {}
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(refused(error)),
        }
        Self::wrap(socket.into(), target, tls)
    }

    fn wrap(
        stream: TcpStream,
        target: &Target,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self, LoadError> {
        let Some(config) = tls else {
            return Ok(Self::Plain(stream));
        };
        let connection =
            ClientConnection::new(Arc::clone(config), target.server_name()?).map_err(|error| {
                LoadError::Tls {
                    address: target.address,
                    reason: error.to_string(),
                }
            })?;
        Ok(Self::Tls(Box::new(StreamOwned::new(connection, stream))))
    }

    /// Reads what is there. 0 if the target closed the connection.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }

    /// Writes what fits. Over TLS, bytes that were taken may still wait: [`Socket::wants_write`].
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    /// Writes what TLS still holds.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }

    /// Whether TLS holds bytes that did not fit into the socket.
    pub(crate) fn wants_write(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.conn.wants_write(),
        }
    }

    /// The error with which opening the connection ended, if it did.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.stream().take_error().ok().flatten()
    }

    fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream().as_fd()
    }
}
